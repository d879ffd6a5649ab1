"""A tree is what the changes made of it, in whatever nodes, and a commit writes few of them."""

from collections.abc import Iterator
from random import Random

import pytest
from sqlalchemy import func, select

from deltahub.registry import Registry
from deltahub.registry.catalog.trees import write
from deltahub.registry.catalog.trees.nodes import free, leaves_below
from deltahub.registry.catalog.trees.read import Tree, below
from deltahub.registry.catalog.trees.sums import Change, TreeFile, sums_of
from deltahub.registry.catalog.trees.write import change_tree, without_files
from deltahub.registry.db.models import File, Revision
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.tables.trees import TreeNode
from deltahub.registry.maintenance.fsck.cursor import Cursor
from deltahub.registry.maintenance.fsck.trees import check_trees
from support.registry.opened import caller, opened_registry, push

FILES = {f"{n}.txt": b"%d" % n for n in range(5)}
FOLDERS = ("", "a/", "a/b/", "a-/", "b/", "\uff5e/", "\U0001f600/")
ENDINGS = (".txt", ".safetensors", ".gguf", "/HEAD", "\U0010ffff")


@pytest.fixture
def reg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with opened_registry(tmp_path_factory.mktemp("trees")) as registry:
        push(registry, caller(registry, "ann"), "ann/m", FILES)
        yield registry


def stored_files(session: WriteSession) -> list[TreeFile]:
    return [
        TreeFile(file.id, "lfs", file.sha256, file.size, file.git_blob_id, file.state)
        for file in session.scalars(select(File).order_by(File.id))
    ]


def n_nodes(session: WriteSession) -> int:
    return session.scalar(select(func.count()).select_from(TreeNode)) or 0


def draw_changes(
    draw: Random, model: dict[str, TreeFile], files: list[TreeFile]
) -> dict[str, TreeFile | None]:
    """Mostly a few changes, and now and then many of one kind."""
    n_changes = draw.choice((1, 2, 3, 30))
    is_deletion = draw.random() < 0.4
    if model and is_deletion:
        return dict.fromkeys(draw.sample(sorted(model), min(n_changes, len(model))))
    return {
        f"{draw.choice(FOLDERS)}{draw.randrange(200):03}{draw.choice(ENDINGS)}": draw.choice(files)
        for _ in range(n_changes)
    }


@pytest.mark.parametrize("max_items", [2, 3, 128])
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_is_what_its_changes_made(
    reg: Registry, monkeypatch: pytest.MonkeyPatch, seed: int, max_items: int
) -> None:
    monkeypatch.setattr(write, "MAX_ITEMS", max_items)
    draw = Random(seed)
    model: dict[str, TreeFile] = {}
    versions: list[tuple[int | None, dict[str, TreeFile]]] = []
    with reg.db.write() as session:
        files = stored_files(session)
        tree_id: int | None = None
        for number in range(1, 60):
            changes = draw_changes(draw, model, files)
            changed = Change(number, number.to_bytes(20, "big"))
            tree_id = change_tree(session, 1, Tree(session, tree_id), changes, changed)
            for path, file in changes.items():
                if file is None:
                    model.pop(path)
                else:
                    model[path] = TreeFile(
                        file.file_id, file.mode, file.sha256, file.size, file.git_blob_id,
                        file.state, changed,
                    )  # fmt: skip
            versions.append((tree_id, dict(model)))
            check_reading(draw, Tree(session, tree_id), model)
        # Later changes leave earlier trees as they were.
        for tree_id, earlier in versions:
            assert dict(Tree(session, tree_id).between("")) == earlier
        revision = session.get_one(Revision, 1)
        old, revision.tree_id = revision.tree_id, versions[-1][0]
        session.flush()
        made = [old, *(tree_id for tree_id, _ in versions)]
        free(session, [tree_id for tree_id in made if tree_id is not None])
        assert dict(Tree(session, versions[-1][0]).between("")) == model
    assert list(check_trees(reg, Cursor())) == []


def check_reading(draw: Random, tree: Tree, model: dict[str, TreeFile]) -> None:
    paths = sorted(model)
    found = list(tree.between(""))
    assert [path for path, _ in found] == paths
    assert all(file == model[path] and file.changed == model[path].changed for path, file in found)
    assert tree.sums == sums_of(model.items())
    asked = [*draw.sample(paths, min(5, len(paths))), "none", "a/none", "\U0010ffff\U0010ffff"]
    assert tree.at(asked) == {path: model[path] for path in asked if path in model}
    first, end = sorted((draw.choice([*paths, ""]), draw.choice([*paths, "b"])))
    inside = {path: file for path, file in model.items() if first <= path < end}
    assert [path for path, _ in tree.between(first, end)] == sorted(inside)
    assert tree.sums_between(first, end) == sums_of(inside.items())
    for folder in ("a", "a/b", "\uff5e"):
        there = {path: file for path, file in model.items() if path.startswith(f"{folder}/")}
        assert tree.sums_between(*below(folder)) == sums_of(there.items())


def test_a_commit_of_one_file_writes_three_nodes(reg: Registry) -> None:
    with reg.db.write() as session:
        file = stored_files(session)[0]
        many = {f"folder{n % 7}/{n:05}": file for n in range(20_000)}
        tree_id = change_tree(session, 1, Tree(session, None), many, Change(1, bytes(20)))
        before = n_nodes(session)
        one = {"folder3/new": file}
        changed = change_tree(session, 1, Tree(session, tree_id), one, Change(2, bytes(20)))
        assert n_nodes(session) == before + 3
        assert change_tree(session, 1, Tree(session, changed), {}, Change(3, bytes(20))) == changed
        fewer = dict.fromkeys(sorted(many)[:19_000])
        small = change_tree(session, 1, Tree(session, changed), fewer, Change(4, bytes(20)))
        assert len(leaves_below(session, [small or 0])) < 20


def test_what_trees_share_stays_until_the_last_is_freed(reg: Registry) -> None:
    with reg.db.write() as session:
        own = n_nodes(session)
        file = stored_files(session)[0]
        many = {f"{n:04}": file for n in range(1000)}
        first = change_tree(session, 1, Tree(session, None), many, Change(1, bytes(20)))
        second = change_tree(session, 1, Tree(session, first), {"x": file}, Change(2, bytes(20)))
        assert first is not None
        assert second is not None
        revision = session.get_one(Revision, 1)
        kept, revision.tree_id = revision.tree_id, second
        session.flush()
        free(session, [first])
        assert sorted(dict(Tree(session, second).between(""))) == sorted([*many, "x"])
        free(session, [second])  # a revision has it
        assert len(list(Tree(session, second).between(""))) == 1001
        revision.tree_id = kept
        session.flush()
        free(session, [second])
        assert n_nodes(session) == own


def test_all_trees_are_rewritten_without_a_file(reg: Registry) -> None:
    with reg.db.write() as session:
        secret, *files = stored_files(session)
        draw = Random(1)
        tree_id: int | None = None
        trees: list[int] = []
        for number in range(30):
            changes = {f"{draw.randrange(3000):04}": draw.choice(files) for _ in range(100)}
            if number % 3 == 0:
                changes[f"secret{number}"] = secret
            changed = Change(number, bytes(20))
            tree_id = change_tree(session, 1, Tree(session, tree_id), changes, changed)
            assert tree_id is not None
            trees.append(tree_id)
        before = n_nodes(session)
        new = without_files(session, 1, {secret.file_id})
        assert set(new) >= set(trees)
        for old in trees:
            expected = {
                path: file for path, file in Tree(session, old).between("") if file != secret
            }
            left = dict(Tree(session, new[old]).between(""))
            assert {path: (file, file.changed) for path, file in left.items()} == {
                path: (file, file.changed) for path, file in expected.items()
            }
        # What the old trees share, the new ones share.
        assert n_nodes(session) <= 2 * before
        alone = change_tree(session, 1, Tree(session, None), {"x": secret}, Change(1, bytes(20)))
        assert alone is not None
        assert without_files(session, 1, {secret.file_id})[alone] is None

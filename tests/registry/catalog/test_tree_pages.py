"""The pages of a tree make the whole tree, and a page reads only the rows it needs."""

from collections.abc import Iterator
from itertools import product
from random import Random

import pytest
from sqlalchemy import Engine, event, select

from deltahub.registry import Registry
from deltahub.registry.catalog.operations import tree_file
from deltahub.registry.catalog.pages.folders import has_folder, read_folders, tree_page
from deltahub.registry.catalog.trees.nodes import free
from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.catalog.trees.sums import Change
from deltahub.registry.catalog.trees.write import change_tree
from deltahub.registry.db.models import File, Revision
from deltahub.registry.db.session import ReadSession
from support.registry.opened import caller, opened_registry, push

# Parts that sort around the slash, parts in another order in UTF-16, and the last code point.
PARTS = ("a", "a-", "a.b", "a0", "b", "\uff5e", "\U0001f600", "\U0010ffff")


@pytest.fixture(scope="module")
def reg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with opened_registry(tmp_path_factory.mktemp("listing")) as registry:
        push(registry, caller(registry, "ann"), "ann/m", {"a.bin": b"1"})
        yield registry


def hold(reg: Registry, paths: set[str]) -> None:
    """Give the only revision these files."""
    with reg.db.write() as session:
        file = session.scalars(select(File)).one()
        revision = session.scalars(select(Revision)).one()
        old, files = revision.tree_id, {path: tree_file(path, file, "lfs") for path in paths}
        changed = Change(1, bytes.fromhex(revision.commit))
        empty = Tree(session, None)
        revision.tree_id = change_tree(session, revision.repository_id, empty, files, changed)
        session.flush()
        free(session, [] if old is None else [old])


def random_tree(seed: int) -> set[str]:
    draw = Random(seed)
    whole = {"/".join(parts) for depth in (1, 2, 3) for parts in product(PARTS, repeat=depth)}
    paths = draw.sample(sorted(whole), 80)
    folders = {path.rpartition("/")[0] for path in paths}
    folders |= {folder.rpartition("/")[0] for folder in folders}
    return set(paths) - folders


def keys_below(paths: set[str], folder: str, *, is_recursive: bool) -> list[str]:
    below = f"{folder}/" if folder else ""
    found = set()
    for path in paths:
        if path.startswith(below):
            parts = path[len(below) :].split("/")
            found |= {f"{below}{'/'.join(parts[:n])}/" for n in range(1, len(parts))} | {path}
    return sorted(key for key in found if is_recursive or "/" not in key[len(below) :].rstrip("/"))


def pages(
    session: ReadSession, revision: Revision, folder: str, size: int, *, is_recursive: bool
) -> Iterator[list[str]]:
    after, has_more = "", True
    while has_more:
        page, has_more = tree_page(
            session, revision, folder, after, size, is_recursive=is_recursive
        )
        yield page
        after = page[-1] if page else after


@pytest.mark.parametrize("is_recursive", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_the_pages_of_a_tree_are_its_files_and_folders(
    reg: Registry, seed: int, is_recursive: bool
) -> None:
    paths = random_tree(seed)
    hold(reg, paths)
    with reg.db.read() as session:
        revision = session.scalars(select(Revision)).one()
        for folder in ("", "a", "a-", "b/\uff5e", "\U0010ffff", "none"):
            expected = keys_below(paths, folder, is_recursive=is_recursive)
            assert has_folder(session, revision, folder) == (bool(expected) and folder != "")
            for size in (1, 2, 7, 1000):
                found = list(pages(session, revision, folder, size, is_recursive=is_recursive))
                assert [key for page in found for key in page] == expected
                assert all(len(page) == size for page in found[:-1])


@pytest.mark.parametrize("is_recursive", [True, False])
@pytest.mark.parametrize("after", ["a-/b/zz", "a", "a/", "a/ ", "a-", "//", "\x7f", "\U0010ffff/"])
def test_a_page_may_begin_anywhere(reg: Registry, after: str, is_recursive: bool) -> None:
    paths = random_tree(5)
    hold(reg, paths)
    expected = [key for key in keys_below(paths, "", is_recursive=is_recursive) if key > after]
    with reg.db.read() as session:
        revision = session.scalars(select(Revision)).one()
        for size in (1, 1000):
            page, _ = tree_page(session, revision, "", after, size, is_recursive=is_recursive)
            assert page == expected[:size]


def test_folders_are_read_with_their_sums(reg: Registry) -> None:
    paths = random_tree(3)
    hold(reg, paths)
    folders = {key.rstrip("/") for key in keys_below(paths, "", is_recursive=True)} - paths
    with reg.db.read() as session:
        revision = session.scalars(select(Revision)).one()
        ids = {key: folder.id for key, folder in read_folders(session, revision, folders).items()}
        for asked in (folders, set(sorted(folders)[:3]), {"a", "none"}, set[str]()):
            found = read_folders(session, revision, asked)
            assert {key: folder.n_files for key, folder in found.items()} == {
                folder: sum(path.startswith(f"{folder}/") for path in paths)
                for folder in asked & folders
            }
            # An id says what is below the folder, whatever other folders are read with it.
            assert {key: folder.id for key, folder in found.items()} == {
                key: ids[key] for key in asked & folders
            }
    contents = {
        key: tuple(path[len(key) :] for path in sorted(paths) if path.startswith(f"{key}/"))
        for key in folders
    }
    assert len(set(ids.values())) == len(folders) >= len(set(contents.values())) > 10


@pytest.mark.parametrize("after", ["", "a/", "a/ ", "a/1500"])
def test_a_folder_of_any_size_is_passed_by(reg: Registry, after: str) -> None:
    hold(reg, {f"a/{n:04}" for n in range(3000)} | {"b", "c/d"})
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    with reg.db.read() as session:
        revision = session.scalars(select(Revision)).one()
        event.listen(Engine, "before_cursor_execute", note)
        try:
            found = tree_page(session, revision, "", after, 2, is_recursive=False)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert found == ((["a/", "b"], True) if not after else (["b", "c/"], False))
    assert len(asked) <= 6

"""What pages of models show: lists, stored files, tensors, changes, lineage and namespaces."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch
from sqlalchemy import select

from deltahub.registry import Caller, Registry, Revision
from deltahub.registry.access import organizations
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.commit import AddFile, DeleteFile, Operation, commit
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.catalog.refs import create_ref, list_refs, resolve_revision
from deltahub.registry.catalog.trees.changes import changed_paths
from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.db.session import ReadSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import LimitExceeded, NotFound
from deltahub.registry.lineage.graph import lineage_graph
from deltahub.registry.quotas.namespaces import get_namespace
from deltahub.registry.reports.model.commits import file_changes, parent_of, tensor_changes
from deltahub.registry.reports.model.files import stored_files
from deltahub.registry.reports.model.lists import ModelQuery, find_models
from deltahub.registry.reports.model.tensors import tensor_table
from support.models.model_folders import base_tensors, tuned_tensors
from support.models.tiny_models import to_file
from support.registry.ingested import push_ingested
from support.registry.opened import caller, ensure_repository, opened_registry, push, upload

PATH = "model.safetensors"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def revision_of(session: ReadSession, who: Caller | None, name: str, at: str = "main") -> Revision:
    return resolve_revision(session, load_repository(session, who, name), at)


def test_changed_paths_are_those_that_a_comparison_of_all_files_finds(
    reg: Registry, ann: Caller
) -> None:
    random = Random(7)
    ensure_repository(reg, ann, "ann/many")
    contents = [b"a", b"bb", b"ccc"]
    hashes = [(upload(reg, ann, data), len(data)) for data in contents]
    known: set[str] = set()
    for n in (3_000, 5, 700, 1, 2_000):
        operations: dict[str, Operation] = {}
        for _ in range(n):
            path = f"{random.randrange(40)}/x{random.randrange(400)}"
            if path in known and random.random() < 0.3:
                operations[path] = DeleteFile(path)
            else:
                operations[path] = AddFile(path, *random.choice(hashes))
        known = {path for path in known | set(operations)
                 if not isinstance(operations.get(path), DeleteFile)}  # fmt: skip
        commit(reg, ann, "ann/many", "main", list(operations.values()))
    with reg.db.read() as session:
        revisions = list(session.scalars(select(Revision).order_by(Revision.id)))
        wholes: list[dict[str, str]] = [{}]
        wholes += [{e.path: e.sha256 for e in list_entries(session, each)} for each in revisions]
        trees = [None, *(each.tree_id for each in revisions)]
        for old, new in ((0, 1), (1, 2), (2, 3), (4, 5), (5, 1), (3, 0), (2, 2)):
            before, now = wholes[old], wholes[new]
            expected = sorted(path for path in before | now if before.get(path) != now.get(path))
            after = expected[len(expected) // 2] if expected else ""
            for first in ("", after):
                found = changed_paths(Tree(session, trees[old]), Tree(session, trees[new]), first)
                assert [each.path for each in found] == [p for p in expected if p > first]


def test_a_commit_tells_files_and_tensors_that_it_added_removed_and_changed(
    reg: Registry, ann: Caller
) -> None:
    tensors = {"a": torch.randn(300), "b": torch.randn(300), "c": torch.randn(300)}
    push_ingested(reg, ann, "ann/m", {PATH: to_file(tensors), "old.txt": b"old"})
    tensors = {"a": tensors["a"], "b": tensors["b"] + 1, "d": torch.randn(4, 5)}
    push_ingested(reg, ann, "ann/m", {PATH: to_file(tensors), "new.txt": b"new"})
    with reg.db.read() as session:
        row = revision_of(session, ann, "ann/m")
        parent = parent_of(session, row)
        changes, has_more = file_changes(session, row, parent, "", 10)
        assert parent is not None
        assert parent_of(session, parent) is None
        assert file_changes(session, row, parent, "", 1) == (changes[:1], True)
        assert file_changes(session, row, parent, PATH, 10)[0] == changes[1:]
    assert not has_more
    assert [(each.path, each.kind) for each in changes] == [(PATH, "changed"), ("new.txt", "added")]
    (model, _) = changes
    assert model.before is not None
    assert model.after is not None
    reader = FileReader(reg)
    found = tensor_changes(reg, reader, model.before.file, model.after.file)
    assert found is not None
    kinds = {each.name: each.kind for each in found.changes}
    assert kinds == {"b": "changed", "c": "removed", "d": "added"}
    assert found.same == 1
    assert found.stored > 0
    added = tensor_changes(reg, reader, None, model.after.file)
    assert added is not None
    assert added.n("added") == 3


def test_files_are_pending_whole_deltas_or_shared(reg: Registry, ann: Caller) -> None:
    base, tuned = (
        to_file(base_tensors(torch.bfloat16)),
        to_file(tuned_tensors(1e-4, torch.bfloat16)),
    )
    push_ingested(reg, ann, "ann/base", {PATH: base, "config.json": b"{}"})
    push_ingested(reg, ann, "ann/tuned", {PATH: tuned, "config.json": b"{}"}, base="ann/base")
    push(reg, ann, "ann/new", {"later.bin": b"later"})
    bob = caller(reg, "bob")

    def how(name: str, who: Caller | None = ann) -> dict[str, tuple[str, tuple[str, ...]]]:
        with reg.db.read() as session:
            row = revision_of(session, ann, name)
            entries = list_entries(session, row)
            stored = stored_files(session, who, row, [each.file for each in entries])
            for each in entries:
                n_bytes = stored[each.file.id].stored
                assert n_bytes is not None
                assert 0 < n_bytes < each.size + 2000
            return {e.path: (stored[e.file.id].how, stored[e.file.id].bases) for e in entries}

    assert how("ann/new") == {"later.bin": ("pending", ())}
    assert how("ann/base") == {PATH: ("whole", ()), "config.json": ("shared", ())}
    assert how("ann/tuned", bob)[PATH] == ("delta", ("ann/base",))
    # A private model is not named to one who may not read it.
    push_ingested(reg, ann, "ann/secret", {PATH: base, "x": b"secret"}, private=True)
    push_ingested(reg, ann, "ann/secret2", {PATH: tuned}, private=True, base="ann/secret")
    assert how("ann/secret2", bob)[PATH][1] in ((), ("ann/base",))


def test_the_table_of_tensors_adds_up_to_the_file(reg: Registry, ann: Caller) -> None:
    tensors = base_tensors(torch.bfloat16)
    push_ingested(reg, ann, "ann/m", {PATH: to_file(tensors), "other.bin": b"x" * 5000})
    with reg.db.read() as session:
        row = revision_of(session, ann, "ann/m")
    table = tensor_table(reg, FileReader(reg), row)
    assert {each.name for each in table.lines} == set(tensors)
    assert sum(each.size for each in table.lines) == sum(t.nbytes for t in tensors.values())
    assert table.n_waiting == 0
    assert tensor_table(reg, FileReader(reg), row) is table, "kept for a moment"
    push(reg, ann, "ann/wait", {PATH: to_file({"a": torch.ones(3)})})
    with reg.db.read() as session:
        waiting = revision_of(session, ann, "ann/wait")
    assert tensor_table(reg, FileReader(reg), waiting).n_waiting == 1


def test_a_table_of_too_many_tensors_is_refused(tmp_path: Path) -> None:
    with opened_registry(tmp_path, max_report_tensors=100) as reg:
        ann = caller(reg, "ann")
        wide = {f"t{i}": torch.full((8,), float(i)) for i in range(150)}
        push_ingested(reg, ann, "ann/wide", {PATH: to_file(wide)})
        with reg.db.read() as session:
            row = revision_of(session, ann, "ann/wide")
        with pytest.raises(LimitExceeded, match="DELTAHUB_MAX_REPORT_TENSORS"):
            tensor_table(reg, FileReader(reg), row)


def test_lineage_is_bounded_and_ends_at_what_one_may_not_read(reg: Registry, ann: Caller) -> None:
    push(reg, ann, "ann/base", {"a": b"base"})
    push(reg, ann, "ann/private", {"a": b"private"}, private=True, base="ann/base")
    push(reg, ann, "ann/behind", {"a": b"behind"}, private=True, base="ann/private")
    for i in range(12):
        push(reg, ann, f"ann/child{i:02}", {"a": b"%d" % i}, base="ann/base")
    push(reg, ann, "ann/grandchild", {"a": b"grand"}, base="ann/child00")
    # A later revision without the base: the model is no child any more.
    push(reg, ann, "ann/child11", {"b": b"alone"}, base="none")

    def names(who: Caller | None, name: str, most: int = 200) -> set[str]:
        return {each.name for each in lineage_graph(reg, who, name, most).nodes}

    children = {f"ann/child{i:02}" for i in range(11)}
    assert names(None, "ann/base") == {"ann/base", "ann/grandchild"} | children
    assert names(ann, "ann/base") >= {"ann/private", "ann/behind"}
    assert names(None, "ann/grandchild") == {"ann/base", "ann/child00", "ann/grandchild"}
    few = lineage_graph(reg, None, "ann/base", 5)
    assert len(few.nodes) == 5
    assert few.n_more >= 7
    assert {each.layer for each in lineage_graph(reg, None, "ann/child00").nodes} == {-1, 0, 1}


def test_models_are_found_by_what_they_are_in_pages(reg: Registry, ann: Caller) -> None:
    reader = FileReader(reg)
    card = b"---\nlicense: mit\npipeline_tag: text-generation\n---\n"
    for i in range(7):
        push(reg, ann, f"ann/m{i}", {"README.md": card, "a": b"%d" % i}, private=i == 0)
    push(reg, ann, "ann/other", {PATH: to_file({"a": torch.ones(4, dtype=torch.float16)})})

    def found(query: ModelQuery, who: Caller | None = ann, limit: int = 3) -> list[str]:
        names: list[str] = []
        after: str | None = None
        while True:
            spent = Spent(1 << 30, 1 << 30)
            page = find_models(reg, reader, who, query, after, limit, spent)
            assert len(page.items) <= limit
            names += [each.name for each in page.items]
            after = page.after
            if after is None:
                return names

    tagged = [f"ann/m{i}" for i in range(6, -1, -1)]
    assert found(ModelQuery(tags=frozenset({"license:mit"}))) == tagged
    assert found(ModelQuery(tags=frozenset({"text-generation"})), None) == tagged[:-1]
    assert found(ModelQuery(only_private=True)) == ["ann/m0"]
    assert found(ModelQuery(only_private=True, words=("ann/m",))) == ["ann/m0"]
    assert found(ModelQuery(only_private=True), None) == []
    assert found(ModelQuery(dtype="F16")) == ["ann/other"]
    assert found(ModelQuery(max_parameters=10)) == ["ann/other"]
    assert found(ModelQuery(min_parameters=10)) == []
    assert found(ModelQuery(namespace="none")) == []
    assert set(found(ModelQuery(order="created", namespace="ann"))) == {*tagged, "ann/other"}


def test_a_namespace_shows_its_members_to_members_and_what_each_may_read(
    reg: Registry, ann: Caller
) -> None:
    organizations.create_organization(reg, "lab")
    bob = caller(reg, "bob")
    organizations.add_member(reg, "lab", "ann", "write")
    push(reg, ann, "lab/open", {"a": b"open"})
    push(reg, ann, "lab/secret", {"a": b"secret"}, private=True)
    inside, outside = get_namespace(reg, ann, "lab"), get_namespace(reg, bob, "lab")
    assert inside.members == {"ann": "write"}
    assert (inside.caller_role, inside.usage.repositories) == ("write", 2)
    assert outside.members is None
    assert (outside.caller_role, outside.usage.repositories) == (None, 1)
    assert outside.usage.logical_bytes == len(b"open")
    assert get_namespace(reg, None, "ann").members is None
    with pytest.raises(NotFound):
        get_namespace(reg, ann, "none")


def test_refs_come_page_by_page(reg: Registry, ann: Caller) -> None:
    push(reg, ann, "ann/m", {"a": b"a"})
    for name in ("x/y", "b", "z"):
        create_ref(reg, ann, "ann/m", "branch", name, "main")
    with reg.db.read() as session:
        repository = load_repository(session, ann, "ann/m")
        first = list_refs(session, repository, "branch", "", 2)
        rest = list_refs(session, repository, "branch", first[-1].name, 2)
    assert [each.name for each in (*first, *rest)] == ["b", "main", "x/y", "z"]

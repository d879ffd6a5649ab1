"""Lists of repositories: who sees what in which order, by which index, and what a page looks at."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text, update

from benchmarks.scale.copies import Copy, write_copies
from deltahub.registry import Registry
from deltahub.registry.access.parts import readable_parts
from deltahub.registry.cards.describe import describe_marked
from deltahub.registry.catalog.lists.filters import MOST_GATHERED, KeysFilter, WordsFilter, rarest
from deltahub.registry.catalog.lists.search import ORDERS, Found, list_repositories, search
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.catalog.repositories import delete_repository, make_private, move_repository
from deltahub.registry.db.models import Repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import InvalidRequest
from support.registry.commits import revision
from support.registry.listing import check_lists, make_models
from support.registry.opened import caller, opened_registry, push

N_COPIES = 7000


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """N_COPIES copies of a model, one in ten private, and a few that differ."""
    with opened_registry(tmp_path_factory.mktemp("many")) as registry:
        ann = caller(registry, "ann")
        cards = {"common": "plain", "other": "odd"}
        for name, tag in cards.items():
            card = f"---\ntags: [both, {tag}]\n---\n".encode()
            push(registry, ann, f"ann/{name}", {"README.md": card})
        describe_marked(registry, FileReader(registry), 0, 10)
        common, other = (revision(registry, f"ann/{name}").repository_id for name in cards)
        write_copies(
            registry,
            (
                Copy(n, common if n % 1000 else other, f"m{n}" if n % 2000 else f"q{n}")
                for n in range(1, N_COPIES + 1)
            ),
        )
        yield registry


def test_a_list_has_what_its_caller_may_read_in_order(reg: Registry) -> None:
    """Each seventh of all lists: tests/registry/lists tries the rest."""
    made, callers = make_models(reg)
    assert check_lists(reg, made, callers, every=7) > 150


def look(reg: Registry, after: str | None = None, limit: int = 100, **more: Any) -> Found:
    with reg.db.read() as session:
        return search(session, None, after=after, limit=limit, **more)


def tagged(*tags: str) -> dict[str, Any]:
    return {"keys": [frozenset({tag}) for tag in tags]}


def test_a_rare_filter_gathers_what_it_leaves(many: Registry) -> None:
    found = look(many, **tagged("both", "odd"))
    # Copy 1000, 2000 and so on are of the other model, and private.
    assert [one.name for one in found.items] == ["ann/other"]
    assert found.after is None
    found = look(many, words=("ann/common",))
    assert ([one.name for one in found.items], found.after) == (["ann/common"], None)


def test_a_common_filter_walks_page_by_page(many: Registry) -> None:
    seen: list[str] = []
    after = None
    while True:
        found = look(many, after, limit=1000, **tagged("both"))
        seen += [one.name for one in found.items]
        after = found.after
        if after is None:
            break
        assert len(found.items) == 1000
    n_public = N_COPIES - N_COPIES // 10 + 2
    assert n_public > MOST_GATHERED
    assert len(seen) == len(set(seen)) == n_public


def test_a_page_that_has_looked_at_enough_ends_with_a_cursor(many: Registry) -> None:
    # Words of two letters have no index.
    found = look(many, words=("er",))
    assert (found.items, found.after is not None) == ([], True)
    found = look(many, found.after, words=("er",))
    assert ([one.name for one in found.items], found.after) == (["ann/other"], None)
    page = list_repositories(many, None, search="er")
    assert (page.items, page.next_cursor is not None) == ([], True)


def test_private_models_of_others_do_not_decide_how_a_page_is_made(reg: Registry) -> None:
    ann, bob = caller(reg, "ann"), caller(reg, "bob")
    for number in range(3):
        card = {"README.md": b"---\ntags: [secret]\n---\n"}
        push(reg, ann, f"ann/secret{number}", card, private=True)
    push(reg, bob, "bob/open", {"README.md": b"---\ntags: [secret]\n---\n"})
    describe_marked(reg, FileReader(reg), 0, 10)
    for who, n in ((None, 1), (bob, 1), (ann, 4)):
        with reg.db.read() as session:
            ids = rarest(session, readable_parts(session, who), [KeysFilter(frozenset({"secret"}))])
            assert ids is not None
            assert len(session.execute(ids).all()) == n
    for who, n in ((None, 0), (bob, 0), (ann, 3)):
        with reg.db.read() as session:
            parts = readable_parts(session, who)
            ids = rarest(session, parts, [WordsFilter(("secret",))])
            assert ids is not None
            assert len(session.execute(ids).all()) == n


def plan(reg: Registry, **more: Any) -> list[str]:
    """How SQLite finds what a search asks for: the lines of EXPLAIN QUERY PLAN."""
    statements: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, values: Any, *_: object) -> None:
        if statement.startswith("SELECT"):
            statements.append((statement, values))

    event.listen(reg.db.read_engine, "before_cursor_execute", note)
    try:
        look(reg, **more)
    finally:
        event.remove(reg.db.read_engine, "before_cursor_execute", note)
    with reg.db.read() as session:
        connection = session.connection()
        return [
            str(row[3])
            for statement, values in statements
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        ]


def test_no_list_scans_or_sorts_all_repositories(many: Registry) -> None:
    for order in ORDERS:
        for after in (None, "9-9000"):
            for more in ({}, tagged("both"), {"words": ("er",)}):
                lines = plan(many, order=order, after=after, **more)
                index = f"SEARCH repositories USING INDEX ix_repositories_{order} (is_private=?"
                assert any(line.startswith(index) for line in lines)
                assert not any(line.startswith("SCAN repositories") for line in lines)
            lines = plan(many, order=order, after=after, namespace="lab1")
            index = f"SEARCH repositories USING INDEX ix_repositories_{order}_in"
            assert any(line.startswith(index) for line in lines)
            # What a rare filter leaves is looked up by id, and then sorted.
            for more in (tagged("odd"), {"words": ("other",)}):
                lines = plan(many, order=order, after=after, **more)
                assert "SEARCH repositories USING INTEGER PRIMARY KEY (rowid=?)" in lines
                assert not any("repositories USING INDEX ix_" in line for line in lines)


def test_a_search_knows_new_names_and_forgets_old_ones(reg: Registry) -> None:
    ann = caller(reg, "ann")
    push(reg, ann, "ann/Before", {"README.md": b"1"})

    def names(word: str, who: object = ann) -> list[str]:
        found = list_repositories(reg, who, search=word)  # type: ignore[arg-type]
        return [item.name for item in found.items]

    assert names("bEFo") == ["ann/Before"]
    move_repository(reg, ann, "ann/Before", "ann/after")
    assert (names("before"), names("after", None)) == ([], ["ann/after"])
    make_private(reg, ann, "ann/after")
    assert (names("after", None), names("n/afte")) == ([], ["ann/after"])
    with reg.db.read() as session:
        assert session.execute(text("SELECT * FROM public_names")).all() == []
    delete_repository(reg, ann, "ann/after")
    assert names("after") == []
    with reg.db.read() as session:
        for table in ("public_names", "private_names", "model_tags"):
            assert session.execute(text(f"SELECT * FROM {table}")).all() == []


def test_a_model_that_becomes_private_takes_its_tags_along(reg: Registry) -> None:
    ann = caller(reg, "ann")
    push(reg, ann, "ann/m", {"README.md": b"---\ntags: [t]\n---\n"})
    describe_marked(reg, FileReader(reg), 0, 10)
    make_private(reg, ann, "ann/m")
    assert look(reg, **tagged("t")).items == []
    with reg.db.read() as session:
        mine = search(session, ann, keys=[frozenset({"t"})])
        assert [one.name for one in mine.items] == ["ann/m"]
    with reg.db.write() as session:
        session.execute(update(Repository).values(is_private=False))
    assert [one.name for one in look(reg, **tagged("t")).items] == ["ann/m"]


def test_a_main_that_begins_at_a_commit_is_the_head(reg: Registry) -> None:
    ann = caller(reg, "ann")
    push(reg, ann, "ann/side", {"a": b"1"}, ref="side")
    assert [one.head for one in list_repositories(reg, ann).items] == [None]
    create_ref(reg, ann, "ann/side", "branch", "main", "side")
    (only,) = list_repositories(reg, ann).items
    assert only.head == revision(reg, "ann/side").commit


def test_a_cursor_of_no_page_is_refused(reg: Registry) -> None:
    for cursor in ("5", "x", "1-", "1-2-3", "\u0661-1", "1-" + "9" * 19):
        with pytest.raises(InvalidRequest, match="no cursor"):
            list_repositories(reg, None, cursor=cursor)


def test_a_copy_has_the_rows_of_a_commit(reg: Registry) -> None:
    """The hubs that `benchmarks/scale` measures are what pushes would have made."""
    ann = caller(reg, "ann")
    files = {"README.md": b"---\ntags: [t]\nbase_model: ann/base\n---\n", "a.txt": b"1"}
    push(reg, ann, "ann/base", {"model.safetensors": b"no weights"})
    for name in ("ann/first", "ann/second"):
        push(reg, ann, name, files, base="ann/base")
    describe_marked(reg, FileReader(reg), 0, 10)
    template = revision(reg, "ann/first").repository_id
    write_copies(reg, iter([Copy(1, template, "copy")]))
    second, copy = (_rows(reg, name) for name in ("ann/second", "lab0/copy"))
    assert copy == second
    assert {table for table, rows in copy.items() if not rows} == set()


# Columns that two commits of the same files do not share.
_OWN = {
    "id", "repository_id", "revision_id", "child_id", "head_id", "namespace_id", "name", "commit",
    "created_at", "due_at", "downloads", "payload", "at", "target", "user_name", "detail",
    "ingest_job_id", "state", "tree_id", "parent_id", "node_id", "changed_commit",
}  # fmt: skip


def _rows(reg: Registry, name: str) -> dict[str, list[dict[str, object]]]:
    namespace, _, short = name.partition("/")
    with reg.db.read() as session:
        ids = session.execute(
            text(
                "SELECT r.id, r.head_id FROM repositories r JOIN namespaces n"
                " ON n.id = r.namespace_id WHERE n.name = :namespace AND r.name = :name"
            ),
            {"namespace": namespace, "name": short},
        ).one()
        values = {"repository": ids[0], "head": ids[1], "target": f"{name}%"}
        nodes = "SELECT id FROM tree_nodes WHERE repository_id = :repository"
        queries = {
            "repositories": "id = :repository",
            "revisions": "repository_id = :repository",
            "refs": "repository_id = :repository",
            "tree_nodes": "repository_id = :repository",
            "tree_links": f"parent_id IN ({nodes})",
            "tree_entries": f"node_id IN ({nodes})",
            "revision_facts": "revision_id = :head",
            "lineage_edges": "child_id = :head",
            "model_tags": "repository_id = :repository",
            "jobs": "repository_id = :repository",
            "audit_events": "target LIKE :target",
            "public_names": "rowid = :repository",
        }
        found = {}
        for table, condition in queries.items():
            rows = session.execute(text(f"SELECT * FROM {table} WHERE {condition}"), values)
            kept = [
                {key: value for key, value in row.items() if key not in _OWN}
                for row in map(dict, rows.mappings())
            ]
            found[table] = sorted(kept, key=str)
    return found

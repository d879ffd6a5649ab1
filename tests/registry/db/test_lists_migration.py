"""A hub of the release before lists had indexes: it shows the same, and catches up by itself."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from deltahub.registry import Registry
from deltahub.registry.access.repositories import find_repository
from deltahub.registry.catalog.lists.search import search
from support.registry.old_schema import make_0006
from support.registry.opened import DATABASE, caller, ensure_repository, opened_registry, push
from support.service.hub import running_hub

CARD = b"---\ntags: [old]\n---\n"
# What the migration adds to tables that were there before.
_LATER = (
    "dropped_entries", "dropped_revisions", "retention_rules", "quotas", "repository_usage",
)  # fmt: skip
_TABLES = ("model_tags", "revision_facts", "public_names", "private_names")


def make_old(folder: Path) -> None:
    """Take away from a new hub what versions 0005 to 0008 added."""
    make_0006(folder)
    with closing(sqlite3.connect(folder / "data" / DATABASE)) as database:
        for table in _LATER:
            database.execute(f"DROP TABLE {table}")
        database.execute("DROP INDEX ix_revisions_parent")
        database.execute("ALTER TABLE revisions DROP COLUMN number")
        database.execute("ALTER TABLE files DROP COLUMN left_by")
        for trigger in ("named", "renamed", "unnamed"):
            database.execute(f"DROP TRIGGER repositories_{trigger}")
        for table in _TABLES:
            database.execute(f"DROP TABLE {table}")
        for order in ("created", "changed", "downloads"):
            for scope in ("", "_in"):
                database.execute(f"DROP INDEX ix_repositories_{order}{scope}")
        for column in ("head_id", "downloads"):
            database.execute(f"ALTER TABLE repositories DROP COLUMN {column}")
        database.execute("CREATE INDEX ix_repositories_newest ON repositories (namespace_id, id)")
        database.execute("UPDATE alembic_version SET version_num = '0004'")
        database.commit()


def schema_of(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "data" / DATABASE)) as database:
        rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        # Columns that are added later stand behind the others.
        return sorted(f"{name} {''.join(sorted(sql))}" for name, sql in rows)


def names(reg: Registry, **more: object) -> list[str]:
    with reg.db.read() as session:
        return [one.name for one in search(session, None, **more).items]  # type: ignore[arg-type]


def test_a_hub_of_the_release_before_keeps_its_lists(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        push(reg, ann, "ann/first", {"README.md": CARD})
        push(reg, ann, "ann/second", {"README.md": b"no card"})
        push(reg, ann, "ann/secret", {"README.md": CARD}, private=True)
        ensure_repository(reg, ann, "ann/empty")
        push(reg, ann, "ann/first", {"more.txt": b"1"})
        with reg.db.read() as session:
            heads = dict(session.execute(text("SELECT name, head_id FROM repositories")).all())
    schema = schema_of(tmp_path)
    make_old(tmp_path)
    with opened_registry(tmp_path) as reg:
        assert schema_of(tmp_path) == schema
        assert names(reg) == ["ann/empty", "ann/second", "ann/first"]
        assert names(reg, order="changed") == ["ann/first", "ann/second", "ann/empty"]
        assert names(reg, words=("sec",)) == ["ann/second"]
        with reg.db.read() as session:
            now = dict(session.execute(text("SELECT name, head_id FROM repositories")).all())
            marked = set(session.scalars(text("SELECT repository_id FROM model_tags")))
            ids = {name: find_repository(session, f"ann/{name}") for name in heads}
        assert now == heads
        assert marked == {row.id for name, row in ids.items() if row and name != "empty"}
        push(reg, ann, "ann/empty", {"README.md": CARD})
        assert names(reg, order="changed")[0] == "ann/empty"


def test_its_server_writes_the_facts_that_it_lacks(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        for number in range(50):
            push(reg, ann, f"ann/m{number}", {"README.md": CARD})
    make_old(tmp_path)
    with running_hub(tmp_path / "data") as hub:
        deadline = time.monotonic() + 60
        marked = text("SELECT count(*) FROM model_tags WHERE tag = ''")
        n_marked = 50
        while n_marked:
            assert time.monotonic() < deadline
            found = hub.call("GET", "/api/models?filter=old&limit=100").json()
            assert len(found) == 50
            with hub.registry.db.read() as session:
                n_marked = session.scalar(marked) or 0
        with hub.registry.db.read() as session:
            assert session.scalar(text("SELECT count(*) FROM revision_facts")) == 50

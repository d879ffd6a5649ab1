"""Trees and suspects on PostgreSQL: made from the entries of an older hub, and collected."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from deltahub.registry import Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.catalog.refs import create_ref, resolve_revision
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db import schema
from deltahub.registry.db.models import File
from deltahub.registry.maintenance.fsck.cursor import Cursor
from deltahub.registry.maintenance.fsck.trees import check_trees
from deltahub.registry.retention.drop import delete_ref
from deltahub.registry.retention.rewrite import delete_files
from deltahub.registry.retention.take_back import take_back
from support.databases.upgrading import upgrade_at_once
from support.registry.collecting import collect, count, is_clean
from support.registry.commits import caller_of
from support.registry.histories import ingest_all
from support.registry.old_schema import MORE_LISTS
from support.registry.opened import caller, opened_registry, push, sha256_of
from support.service.postgresql import postgresql_server

NAME = "ann/m"
PATHS = {f"f{n % 9}/{n:04}.txt": b"%d" % (n % 50) for n in range(600)} | {"\uff5e": b"1"}
TO_0007 = f"""
{"; ".join(MORE_LISTS)};
DROP TABLE hub_history, comparison_parts, comparisons;
DROP TABLE web_sessions, passwords, invitations, identities;
ALTER TABLE users DROP COLUMN disabled_at;
DROP TABLE spooled_parts, spooled_uploads, leases;
ALTER TABLE jobs DROP COLUMN worker_id, DROP COLUMN n_deaths;
DROP TABLE suspects CASCADE;
UPDATE alembic_version SET version_num = '0007';
"""
TO_0006 = f"""
{TO_0007}
CREATE TABLE entries (revision_id BIGINT REFERENCES revisions (id) ON DELETE CASCADE,
    path VARCHAR(1024), file_id BIGINT REFERENCES files (id), mode VARCHAR(8),
    PRIMARY KEY (revision_id, path));
CREATE TABLE dropped_entries (dropped_id BIGINT REFERENCES dropped_revisions (id)
    ON DELETE CASCADE, path VARCHAR(1024), file_id BIGINT REFERENCES files (id), mode VARCHAR(8),
    PRIMARY KEY (dropped_id, path));
INSERT INTO entries SELECT r.id, e.path, e.file_id, e.mode FROM revisions r
    JOIN tree_links t ON t.parent_id = r.tree_id JOIN tree_links g ON g.parent_id = t.child_id
    JOIN tree_entries e ON e.node_id = g.child_id;
INSERT INTO dropped_entries SELECT r.id, e.path, e.file_id, e.mode FROM dropped_revisions r
    JOIN tree_links t ON t.parent_id = r.tree_id JOIN tree_links g ON g.parent_id = t.child_id
    JOIN tree_entries e ON e.node_id = g.child_id;
ALTER TABLE revisions DROP COLUMN tree_id;
ALTER TABLE dropped_revisions DROP COLUMN tree_id;
DROP TABLE tree_entries, tree_links, tree_nodes CASCADE;
DROP INDEX ix_files_not_ingested;
UPDATE alembic_version SET version_num = '0006';
"""


@pytest.fixture
def url() -> Iterator[str]:
    with postgresql_server() as address:
        yield address


def shown(reg: Registry) -> dict[str, object]:
    with reg.db.read() as session:
        repository = load_repository(session, caller_of(reg, NAME), NAME)
        commits = session.scalars(text('SELECT "commit" FROM revisions ORDER BY id')).all()
        return {
            commit: [
                (entry.path, entry.mode, entry.sha256, entry.changed)
                for entry in list_entries(session, resolve_revision(session, repository, commit))
            ]
            for commit in commits
        }


@pytest.mark.parametrize(("version", "changes"), [("0006", TO_0006), ("0007", TO_0007)])
def test_a_hub_of_an_older_release_is_upgraded_once_shows_the_same_and_is_collected(
    url: str, tmp_path: Path, version: str, changes: str
) -> None:
    with opened_registry(tmp_path, database_url=url) as reg:
        ann = caller(reg, "ann")
        first = push(reg, ann, NAME, PATHS).commit
        for number in range(5):
            push(reg, ann, NAME, {"README.md": b"# %d" % number, "secret": b"s"})
        create_ref(reg, ann, NAME, "branch", "gone", first)
        gone = push(reg, ann, NAME, {"gone.txt": b"gone"}, ref="gone").commit
        delete_ref(reg, ann, NAME, "branch", "gone")
        before = shown(reg)
        assert [path for path, *_ in next(iter(before.values()))] == sorted(PATHS)
    engine = create_engine(url)
    with engine.begin() as connection:
        names = connection.scalars(
            text("SELECT proname FROM pg_proc WHERE proname LIKE '%_suspect'")
        )
        for name in names.all():
            connection.execute(text(f"DROP FUNCTION {name} CASCADE"))
        connection.execute(text(changes))
    engine.dispose()
    lines = upgrade_at_once(tmp_path / "data", url, n_processes=3)
    nothing = f"the database has schema version {schema.head()}: nothing to do\n"
    upgraded = f"upgraded the database from schema version {version} to {schema.head()}\n"
    assert sorted(lines) == sorted([upgraded, nothing, nothing])
    with opened_registry(tmp_path, database_url=url) as reg:
        ann = caller_of(reg, NAME)
        assert shown(reg) == before
        assert list(check_trees(reg, Cursor())) == []
        take_back(reg, ann, NAME, gone, "back")
        assert delete_files(reg, ann, NAME, [sha256_of(b"s")]) == [sha256_of(b"s")]
        ingest_all(reg)
        collect(reg, revision_grace_s=0)
        assert is_clean(reg)
        delete_repository(reg, ann, NAME)
        collect(reg, revision_grace_s=0)
        assert count(reg, File) == 0
        assert is_clean(reg)

"""The migrations build exactly the schema of the models, once, and never touch a newer one."""

import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint, text

from deltahub.registry import Registry, Settings
from deltahub.registry.db import schema
from deltahub.registry.db.models import Base
from deltahub.registry.db.session import Database
from deltahub.registry.errors import SchemaTooNew
from support.registry import opened_registry


@pytest.fixture
def database(tmp_path: Path) -> Database:
    # Characters that a configuration file or URL might trip over.
    folder = tmp_path / "a folder 100% full"
    folder.mkdir()
    return Database(f"sqlite:///{folder}/test.sqlite3")


def test_the_migrations_make_the_schema_of_the_models(database: Database) -> None:
    schema.upgrade(database)
    with database.write_engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    database.close()


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    schema.upgrade(database)
    assert schema.current(database) == schema.head()
    with database.write_engine.connect() as connection:
        before = connection.execute(text("SELECT sql FROM sqlite_master")).all()
        assert connection.execute(text("PRAGMA data_version")).scalar() is not None
    schema.upgrade(database)
    with database.write_engine.connect() as connection:
        assert connection.execute(text("SELECT sql FROM sqlite_master")).all() == before
    assert schema.current(database) == schema.head()
    database.close()


def test_uploads_of_an_older_release_are_kept_as_if_they_were_promised(database: Database) -> None:
    with database.write_engine.connect() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(text("INSERT INTO users VALUES (1, 'ann', 0, '2020-01-01 00:00:00')"))
        for state in ("complete", "receiving"):
            connection.execute(
                text(
                    "INSERT INTO landings (id, user_id, sha256, size, state, created_at, "
                    "expires_at) VALUES (:it, 1, :it, 9, :it, '2020-01-01', '2020-01-02')"
                ),
                {"it": state},
            )
        connection.commit()
    schema.upgrade(database)
    with database.write_engine.connect() as connection:
        rows = connection.execute(text("SELECT state, promised_until FROM landings ORDER BY 1"))
        assert rows.all() == [("complete", "2020-01-02"), ("receiving", None)]
    database.close()


def test_a_schema_of_a_newer_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg, reg.db.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaTooNew, match=r"9999.*does not know.*start the release"):
        Registry.open(Settings(data_dir=tmp_path / "data"))
    database = Database(Settings(data_dir=tmp_path / "data").effective_database_url)
    assert schema.current(database) == "9999"
    database.close()


OPEN = """
import sys
from pathlib import Path
from deltahub.registry import Registry, Settings
Registry.open(Settings(data_dir=Path(sys.argv[1]))).close()
"""


def test_processes_that_start_at_once_migrate_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN, str(tmp_path / "new" / "data")]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    with Registry.open(Settings(data_dir=tmp_path / "new" / "data")) as reg:
        assert schema.current(reg.db) == schema.head()


def test_every_foreign_key_can_be_followed_back_by_an_index() -> None:
    """Deleting a row makes the database look for what refers to it."""
    for table in Base.metadata.tables.values():
        first_columns = {next(iter(index.columns)).name for index in table.indexes}
        first_columns |= {
            next(iter(constraint.columns)).name
            for constraint in table.constraints
            if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint)
        }
        for key in table.foreign_keys:
            is_deleted = key.column.table.name not in ("domains", "users", "namespaces")
            assert not is_deleted or key.parent.name in first_columns, f"{table.name}.{key.parent}"


def test_files_that_the_chunk_map_knew_before_are_found_by_their_first_chunk(
    database: Database,
) -> None:
    schema.upgrade(database)
    row = {"xorb": b"x" * 32, "sha": "0" * 64, "chunks": bytes(range(72))}
    with database.write() as session:
        session.execute(text("DROP INDEX ix_xet_ranges_head"))
        session.execute(text("ALTER TABLE xet_ranges DROP COLUMN head"))
        session.execute(text("ALTER TABLE xet_ranges DROP COLUMN domain_id"))
        session.execute(text("UPDATE alembic_version SET version_num = '0004'"))
        for offset in (0, 100):
            session.execute(
                text(
                    'INSERT INTO xet_ranges (xorb, first, "end", sha256, "offset", chunks)'
                    " VALUES (:xorb, :first, :first + 2, :sha, :first, :chunks)"
                ),
                row | {"first": offset},
            )
    schema.upgrade(database)
    with database.read() as session:
        found = session.execute(text('SELECT "offset", head FROM xet_ranges')).all()
    assert [tuple(each) for each in found] == [(0, bytes(range(32))), (100, None)]
    database.close()


def test_of_the_chunk_map_what_one_domain_alone_has_stays_in_use(database: Database) -> None:
    schema.upgrade(database)
    with database.write() as session:
        session.execute(text("ALTER TABLE xet_ranges DROP COLUMN domain_id"))
        session.execute(text("UPDATE alembic_version SET version_num = '0005'"))
        for domain in (1, 2):
            session.execute(text("INSERT INTO domains (id, key) VALUES (:id, :id)"), {"id": domain})
        for sha, domain in (("public", 1), ("both", 1), ("both", 2), ("private", 2)):
            session.execute(
                text(
                    "INSERT INTO files (domain_id, sha256, size, state, created_at)"
                    " VALUES (:domain, :sha, 1, 'landed', '2020-01-01')"
                ),
                {"domain": domain, "sha": sha},
            )
        for sha in ("public", "both", "private", "gone"):
            session.execute(
                text(
                    'INSERT INTO xet_ranges (xorb, first, "end", sha256, "offset", chunks)'
                    " VALUES ('x', 0, 1, :sha, 0, 'c')"
                ),
                {"sha": sha},
            )
    schema.upgrade(database)
    with database.read() as session:
        found = session.execute(text("SELECT sha256, domain_id FROM xet_ranges")).all()
    assert dict(map(tuple, found)) == {"public": 1, "both": None, "private": 2, "gone": None}
    database.close()

"""Migrations build exactly the schema of the models, and refuse a newer schema."""

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint, text

from deltahub.registry import Registry, Settings
from deltahub.registry.db import schema
from deltahub.registry.db.models import Base
from deltahub.registry.db.session import Database
from deltahub.registry.errors import SchemaTooNew
from support.registry.opened import opened_registry

MIGRATIONS = Path(__file__).parents[3] / "migrations"


@pytest.fixture
def database(tmp_path: Path) -> Database:
    # Characters that a configuration file or URL might misread.
    folder = tmp_path / "a folder 100% full"
    folder.mkdir()
    return Database(f"sqlite:///{folder}/test.sqlite3")


# SQLAlchemy does not read indexes of expressions from SQLite; the test looks them up itself.
@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")
@pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based")
def test_the_migrations_make_the_schema_of_the_models(database: Database) -> None:
    schema.upgrade(database)
    with database.write_engine.connect() as connection:
        # The tables of SQLite's full-text search have no models, as no ORM knows their kind.
        opts = {"compare_type": True, "include_name": _is_of_models}
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, Base.metadata) == []
        query = text("SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '%lower(%'")
        of_names = {"ix_namespaces_lower_name", "ix_repositories_lower_name"}
        assert set(connection.scalars(query)) == of_names
    database.close()


def _is_of_models(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or not str(name).startswith(("public_names", "private_names"))


def test_the_names_of_the_files_say_the_versions_that_alembic_finds_in_them() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    history = list(ScriptDirectory.from_config(config).walk_revisions())
    assert schema.head() == history[0].revision
    for script in history:
        assert Path(script.path).name.partition("_")[0] == script.revision


def test_a_process_that_has_nothing_to_migrate_does_not_load_alembic(tmp_path: Path) -> None:
    with opened_registry(tmp_path):
        pass
    check = OPEN + "assert 'alembic' not in sys.modules"
    subprocess.run([sys.executable, "-c", check, str(tmp_path / "data")], check=True)


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
    """When a row is deleted, the database looks for rows that refer to it."""
    for table in Base.metadata.tables.values():
        with_columns = [index for index in table.indexes if len(index.columns)]
        first_columns = {next(iter(index.columns)).name for index in with_columns}
        first_columns |= {
            next(iter(constraint.columns)).name
            for constraint in table.constraints
            if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint)
        }
        for key in table.foreign_keys:
            is_deleted = key.column.table.name not in ("domains", "users", "namespaces")
            assert not is_deleted or key.parent.name in first_columns, f"{table.name}.{key.parent}"

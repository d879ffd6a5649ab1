"""Migrations on PostgreSQL: one process at a time, and the schema of the models."""

from collections.abc import Iterator
from contextlib import closing
from itertools import count as numbers
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text

from deltahub.registry import Registry, Settings
from deltahub.registry.db import schema
from deltahub.registry.db.models import Base
from deltahub.registry.db.opening import migration_lock
from deltahub.registry.db.session import Database
from deltahub.registry.errors import SchemaTooNew, Unavailable
from support.databases.upgrading import upgrade_at_once
from support.service.postgresql import new_database, postgresql_server
from support.service.store_commands import run_command

_NAMES = (f"migrated{number}" for number in numbers())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql_server() as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    return new_database(server, next(_NAMES))


def test_processes_that_upgrade_an_empty_database_at_once_do_it_once(
    url: str, tmp_path: Path
) -> None:
    lines = upgrade_at_once(tmp_path / "none", url, n_processes=6)
    nothing = f"the database has schema version {schema.head()}: nothing to do\n"
    made = f"made the tables of schema version {schema.head()} in an empty database\n"
    assert sorted(lines) == sorted([made, *[nothing] * 5])
    assert not (tmp_path / "none").exists(), "a database may be made ready before its hub"


def test_the_migrations_make_the_schema_of_the_models(url: str) -> None:
    with closing(Database(url)) as database:
        assert schema.upgrade(database) is None
        assert schema.upgrade(database) == schema.head()
        with database.write_engine.connect() as connection:
            options = {"compare_type": True, "include_name": _is_of_models}
            context = MigrationContext.configure(connection, opts=options)
            assert compare_metadata(context, Base.metadata) == []


def _is_of_models(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or name not in ("public_names", "private_names")


def test_who_waits_too_long_is_told_who_holds_the_lock(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration_lock, "WAIT_S", 0.2)
    with closing(Database(url)) as database, migration_lock.migration_lock(database):
        with pytest.raises(Unavailable) as refused:
            Registry.open(Settings(data_dir=tmp_path / "data", database_url=url))
        for word in ("more than 0.2 s", "PostgreSQL's process ", "application deltahub migration:",
                     "user hub", "from 127.0.0.1", "since 20", "pg_terminate_backend"):  # fmt: skip
            assert word in str(refused.value)
    Registry.open(Settings(data_dir=tmp_path / "data", database_url=url)).close()


def test_a_hub_whose_schema_is_right_does_not_wait(url: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", database_url=url)
    Registry.open(settings).close()
    with closing(Database(url)) as database, migration_lock.migration_lock(database):
        Registry.open(settings).close()


def test_the_lock_ends_with_its_holder(url: str, tmp_path: Path) -> None:
    with closing(Database(url)) as database, pytest.raises(KeyboardInterrupt):
        with migration_lock.migration_lock(database):
            raise KeyboardInterrupt
    Registry.open(Settings(data_dir=tmp_path / "data", database_url=url)).close()


def test_a_newer_schema_is_refused_with_its_status(url: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", database_url=url)
    Registry.open(settings).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(SchemaTooNew):
        Registry.open(settings)
    refused = run_command(
        tmp_path / "data", "db", "upgrade", environment={"DELTAHUB_DATABASE_URL": url}
    )
    assert refused.returncode == 2
    assert "9999, which this release" in refused.stderr

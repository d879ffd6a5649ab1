"""A newer release brings its schema along while servers and workers of this release run."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import as_file, files
from itertools import count as numbers
from pathlib import Path

import pytest
from sqlalchemy import text

from deltahub.registry import Registry, Settings
from deltahub.registry.db import schema
from deltahub.registry.db.session import Database
from deltahub.registry.errors import SchemaTooNew, Unavailable
from deltahub.registry.maintenance.database_move.refused import DatabaseMoveRefused
from support.service.hub import ServedHub, served_hub
from support.service.postgresql import new_database, postgresql_server

_NAMES = (f"rolling{number}" for number in numbers())
_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "{version}"
down_revision = "{before}"


def upgrade() -> None:
    op.add_column("repositories", sa.Column("of_{version}", sa.Text()))
"""
Release = Callable[[str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql_server() as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    return new_database(server, next(_NAMES))


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Release]:
    """From its call on, this process is of a release whose last migration has that version."""

    def becomes(version: str) -> None:
        before = schema.head()
        folder = tmp_path / f"migrations-{version}"
        with as_file(schema._MIGRATIONS) as present:
            shutil.copytree(present, folder)
        migration = _MIGRATION.format(version=version, before=before)
        (folder / "versions" / f"{version}_of_a_test.py").write_text(migration)
        monkeypatch.setattr(schema, "_MIGRATIONS", folder)
        schema._versions.cache_clear()

    yield becomes
    schema._versions.cache_clear()


@pytest.fixture
def old_release(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, this process is of this release again."""

    def becomes() -> None:
        monkeypatch.setattr(schema, "_MIGRATIONS", files("deltahub.migrations"))
        schema._versions.cache_clear()

    return becomes


@pytest.fixture
def hub(url: str, tmp_path: Path) -> Iterator[ServedHub]:
    """A hub of this release, as processes of their own."""
    environment = {"DELTAHUB_DATABASE_URL": url}
    with served_hub(tmp_path / "old", environment=environment) as hub:
        hub.create("admin/before")
        yield hub


def ready(hub: ServedHub) -> int:
    time.sleep(1.1)  # an answer holds for a second
    return hub.call("GET", "/readyz").status


def next_version(step: str) -> str:
    """The version of a release that only adds (step "a"), or needs all others stopped ("")."""
    digits = schema.head()[:4]
    return f"{digits}z{step}" if step else f"{int(digits) + 1:04}"


def test_servers_and_workers_go_on_while_a_release_adds_to_the_schema(
    hub: ServedHub, url: str, tmp_path: Path, release: Release, old_release: Callable[[], None]
) -> None:
    release(next_version("a"))
    with closing(Database(url)) as database:
        before = schema.upgrade(database)
        assert before is not None
        assert before < schema.head() == schema.current(database)
    assert ready(hub) == 200
    hub.create("admin/after")
    data = b"a file that the old server takes and its worker ingests" * 1000
    answer = hub.commit("admin/after", {"notes.bin": data})
    assert hub.wait_for_job(answer["job_id"])["state"] == "done"
    with Registry.open(Settings(data_dir=hub.data_dir, database_url=url)):
        pass  # the new release runs beside it

    old_release()
    with Registry.open(Settings(data_dir=hub.data_dir, database_url=url)) as late:
        # A server of the old release that is started again changes nothing.
        assert schema.current(late.db) == next_version("a")


def test_a_schema_that_no_older_release_can_use_waits_until_they_have_stopped(
    hub: ServedHub, url: str, tmp_path: Path, release: Release, old_release: Callable[[], None]
) -> None:
    release(next_version(""))
    settings = Settings(data_dir=tmp_path / "new", database_url=url)
    with pytest.raises(Unavailable, match=r"deltahub serve.*, process \d+ on .*stop them first"):
        Registry.open(settings)
    assert ready(hub) == 200, "nothing was changed"
    hub.kill_all()
    with closing(Database(url)) as database:
        with database.write() as session:  # as if they had been dead for long
            session.execute(text("DELETE FROM leases"))
        schema.upgrade(database)
    Registry.open(settings).close()

    old_release()
    with pytest.raises(SchemaTooNew):
        Registry.open(settings)


def test_an_older_release_does_not_move_a_database_that_has_more(
    tmp_path: Path, release: Release, old_release: Callable[[], None], url: str
) -> None:
    from deltahub.registry.maintenance.database_move.run import rehearse

    release(next_version("a"))
    settings = Settings(data_dir=tmp_path / "data")
    Registry.open(settings).close()
    old_release()
    Registry.open(settings).close()
    with pytest.raises(DatabaseMoveRefused, match="newer release"):
        rehearse(settings, url, lambda *_: None)

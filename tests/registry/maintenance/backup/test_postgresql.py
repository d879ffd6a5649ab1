"""A hub on PostgreSQL is backed up by pg_dump and restored into an empty database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from deltahub.registry.db.tables.stores import ObjectStore
from deltahub.registry.maintenance.backup.place import opened_to_read
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.maintenance.backup.snapshot import load
from deltahub.registry.maintenance.restore import database as restoring
from deltahub.registry.maintenance.restore.database import lost_places
from deltahub.registry.maintenance.restore.target import RestoreRefused
from deltahub.registry.settings import Settings
from support.registry.backing_up import findings, restored
from support.registry.collecting import is_clean
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry
from support.service.postgresql import new_database, postgresql_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql_server() as url:
        yield url


def test_everything_comes_back(server: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with opened_registry(tmp_path, database_url=server) as reg:
        ann = caller(reg, "ann")
        revision = push_ingested(reg, ann, "ann/m", {"a.bin": b"a" * 5000})
        assert backup(reg, str(place)).snapshot.findings == ()
        assert backup(reg, str(place)).copied.n_copied == 0
    assert findings(place) == []
    with pytest.raises(RestoreRefused, match="DELTAHUB_DATABASE_URL"):
        restored(place, tmp_path / "none")
    with pytest.raises(RestoreRefused, match="has tables already"):
        restored(place, tmp_path / "full", database_url=server)
    assert not (tmp_path / "full").exists()
    again = new_database(server, "again")
    restored(place, tmp_path / "elsewhere", database_url=again)
    with opened_registry(tmp_path / "elsewhere", database_url=again) as reg:
        assert read_file(reg, revision, "a.bin") == b"a" * 5000
        assert is_clean(reg)


def test_the_dump_tells_where_the_lost_hub_had_its_objects(server: str, tmp_path: Path) -> None:
    with opened_registry(tmp_path, database_url=new_database(server, "moved")) as reg:
        with reg.db.write() as session:
            session.add(ObjectStore(mark="0" * 32, url="s3://hubs/hub1", state="left"))
        backup(reg, str(tmp_path / "place"))
    with opened_to_read(str(tmp_path / "place"), Settings()) as place:
        assert lost_places(place, load(place, None), tmp_path) == ["s3://hubs/hub1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "place"]


def test_a_restore_that_ended_after_the_dump_was_loaded_goes_on(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    url, other = new_database(server, "cut_short"), new_database(server, "other")
    with opened_registry(tmp_path, database_url=new_database(server, "original")) as reg:
        revision = push_ingested(reg, caller(reg, "ann"), "ann/m", {"a.bin": b"a" * 5000})
        backup(reg, str(place))
        original = reg.settings.database_url
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_adapt", end)
        with pytest.raises(KeyboardInterrupt):
            restored(place, tmp_path / "elsewhere", database_url=url)
    # Only the database that this restore has begun to fill may have tables, not the hub's own.
    with pytest.raises(RestoreRefused, match="has tables already"):
        restored(place, tmp_path / "elsewhere", database_url=original)
    engine = create_engine(other)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE photos (id INTEGER)")
    engine.dispose()
    with pytest.raises(RestoreRefused, match="has tables already"):
        restored(place, tmp_path / "elsewhere", database_url=other)
    restored(place, tmp_path / "elsewhere", database_url=url)
    with opened_registry(tmp_path / "elsewhere", database_url=url) as reg:
        assert read_file(reg, revision, "a.bin") == b"a" * 5000
        assert is_clean(reg)


def end(*arguments: object) -> None:
    raise KeyboardInterrupt

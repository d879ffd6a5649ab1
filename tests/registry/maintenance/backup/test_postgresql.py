"""A hub on PostgreSQL is backed up by pg_dump and restored into an empty database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from deltahub.registry.maintenance.backup.restore import RestoreRefused
from deltahub.registry.maintenance.backup.run import backup
from support.registry.backing_up import findings, restored
from support.registry.collecting import is_clean
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry
from support.service.postgresql import postgresql_server


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
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE again")
    engine.dispose()
    again = make_url(server).set(database="again").render_as_string(hide_password=False)
    restored(place, tmp_path / "elsewhere", database_url=again)
    with opened_registry(tmp_path / "elsewhere", database_url=again) as reg:
        assert read_file(reg, revision, "a.bin") == b"a" * 5000
        assert is_clean(reg)

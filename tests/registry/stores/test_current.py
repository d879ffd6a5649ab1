"""A start finds the hub's own objects, or is refused before it makes a store of something else."""

import sqlite3
from pathlib import Path

import pytest

from deltahub.registry import Registry, Settings
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.storage.base import StoreUnavailable
from deltahub.registry.storage.disk import Disk
from deltahub.registry.stores.current import StoreOpener, WrongStore
from deltahub.registry.stores.places import read_places
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry


def test_a_folder_without_its_disk_is_not_made_a_store(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        revision = push_ingested(reg, caller(reg, "ann"), "ann/m", {"a.bin": b"a" * 5000})
        [key, *_] = (info.key for info in reg.store.list("packs/"))
        objects, away = reg.data_dir / "objects", tmp_path / "away"
        objects.rename(away)
        objects.mkdir()
        with reg.db.read() as session:
            places = read_places(session)
        assert places is not None
        opener = StoreOpener(reg.db, reg.data_dir, reg.settings, Disk())
        for opening in (lambda: opener.place(places.current), opener.current):
            with pytest.raises(WrongStore, match="is its disk mounted"):
                opening()
        assert not list(objects.iterdir())
        (objects / ".tmp").mkdir()  # an older release has made a store of it
        with pytest.raises(StoreUnavailable, match="seems to be away"):
            reg.store.size(key)
        with pytest.raises(WrongStore, match="is its disk mounted"):
            opener.current()
        (objects / ".tmp").rmdir()
        objects.rmdir()
        away.rename(objects)
        assert read_file(reg, revision, "a.bin") == b"a" * 5000


def test_objects_of_another_hub_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with Registry.open(Settings(data_dir=tmp_path / name)) as reg:
            push_ingested(reg, caller(reg, "ann"), "ann/m", {"a.bin": name.encode() * 5000})
    (tmp_path / "two/objects").rename(tmp_path / "own")
    (tmp_path / "one/objects").rename(tmp_path / "two/objects")
    with pytest.raises(WrongStore, match="the objects of another hub"):
        Registry.open(Settings(data_dir=tmp_path / "two"))


def test_another_place_in_the_settings_is_refused_once_there_are_objects(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        push_ingested(reg, caller(reg, "ann"), "ann/m", {"a.bin": b"a" * 5000})
    with pytest.raises(WrongStore, match=r"lie in .*objects.*deltahub store copy --to s3://b-1/h"):
        Registry.open(Settings(data_dir=tmp_path / "data", store_url="s3://b-1/h"))


def test_where_the_database_does_not_say_where_objects_lie_none_is_called_missing(
    tmp_path: Path,
) -> None:
    with opened_registry(tmp_path) as reg:
        push_ingested(reg, caller(reg, "ann"), "ann/m", {"a.bin": b"a" * 5000})
    path = tmp_path / "data" / "deltahub.sqlite3"
    with sqlite3.connect(path) as connection:
        page = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'object_stores'"
        ).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    for left in (tmp_path / "data/objects").glob("packs/*/*"):
        left.unlink()  # as after a move
    with Registry.open_to_read(Settings(data_dir=tmp_path / "data"), schema_checked=False) as reg:
        codes = {finding.code for finding in fsck(reg, read_data=True)}
    assert "database_damaged" in codes
    assert not [code for code in codes if "missing" in code or "hash" in code]

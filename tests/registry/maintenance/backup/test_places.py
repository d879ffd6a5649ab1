"""What may be the place of backups: a wrong one is refused, and left as it was."""

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from deltahub.registry.db.models import utc_now
from deltahub.registry.maintenance.backup.place import Place, PlaceRefused, overlap
from deltahub.registry.maintenance.backup.prune import remove_unfinished
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.maintenance.backup.snapshot import names_in
from deltahub.registry.maintenance.restore.target import RestoreRefused
from deltahub.registry.settings import Settings
from deltahub.registry.storage.keys import pack_key
from deltahub.registry.storage.local import FileStore
from support.registry.backing_up import findings, names, restored
from support.registry.small_hub import SmallHub

A_YEAR_AGO = 1_700_000_000


def content(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize("name", [".tmp/notes", ".bashrc", "doc"])
def test_a_folder_with_anything_else_is_refused_and_left_as_it_was(
    hub: SmallHub, tmp_path: Path, name: str
) -> None:
    home = tmp_path / "home"
    file = home / name
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    os.utime(file, (A_YEAR_AGO, A_YEAR_AGO))
    before = content(home)
    with pytest.raises(PlaceRefused, match="not empty"):
        backup(hub.reg, str(home))
    assert content(home) == before


def test_an_empty_disk_and_what_a_killed_backup_left_are_places(
    hub: SmallHub, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    (place / "lost+found").mkdir(parents=True)
    (place / ".tmp").mkdir()
    (place / ".tmp" / ("a" * 32)).touch()
    backup(hub.reg, str(place))
    assert findings(place) == []


def test_a_place_and_the_hub_do_not_lie_in_each_other(hub: SmallHub, tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk" / "objects"
    elsewhere.parent.mkdir()
    shutil.move(hub.reg.data_dir / "objects", elsewhere)
    (hub.reg.data_dir / "objects").symlink_to(elsewhere)
    inside = elsewhere / "backup"
    for place in (hub.reg.data_dir, hub.reg.data_dir / "x", tmp_path, elsewhere, inside):
        with pytest.raises(PlaceRefused, match="one in the other"):
            backup(hub.reg, str(place))
    assert not inside.exists()
    place = tmp_path / "place"
    backup(hub.reg, str(place))
    with pytest.raises(RestoreRefused, match="one in the other"):
        restored(place, place)
    assert not (place / "data").exists()


@pytest.mark.parametrize(
    ("other", "is_one"),
    [
        ("s3://bucket/hub", True),
        ("s3://bucket/hub/backup", True),
        ("s3://bucket", True),
        ("s3://bucket/hub?endpoint=http://one:9000/", True),
        ("s3://bucket/hub?endpoint=http://two:9000", False),
        ("s3://bucket/hub2", False),
        ("s3://bucket2/hub", False),
        ("bucket/hub", False),
    ],
)
def test_prefixes_of_one_bucket_do_not_lie_in_each_other(other: str, is_one: bool) -> None:
    settings = Settings(s3_endpoint="http://one:9000")
    assert overlap("s3://bucket/hub", other, settings) == is_one
    assert overlap(other, "s3://bucket/hub", settings) == is_one


def test_nothing_is_removed_when_another_backup_wrote_to_the_place(
    hub: SmallHub, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    first = backup(hub.reg, str(place)).snapshot.name

    def other_machine(stage: str, n_bytes: int) -> None:
        if stage == "pack":
            (place / "snapshots" / "2999-01-31t04-05-06z").mkdir(exist_ok=True)
            (place / "snapshots" / "2999-01-31t04-05-06z" / "database.sqlite3.zst").touch()

    outcome = backup(hub.reg, str(place), keep=1, progress=other_machine)
    assert outcome.pruned is None
    assert "another backup" in outcome.notes[0]
    assert names(place) == [first, outcome.snapshot.name]


def test_an_object_that_came_during_the_backup_stays(hub: SmallHub, tmp_path: Path) -> None:
    place = tmp_path / "place"
    backup(hub.reg, str(place))
    young, old = (place / "objects" / pack_key(2 * f"aa{n:014x}") for n in (1, 2))

    def other_machine(stage: str, n_bytes: int) -> None:
        if stage == "pack":
            young.parent.mkdir(exist_ok=True)
            young.touch()
            old.touch()
            os.utime(old, (A_YEAR_AGO, A_YEAR_AGO))

    assert backup(hub.reg, str(place), keep=1, progress=other_machine).pruned is not None
    assert (young.exists(), old.exists()) == (True, False)


def test_in_a_bucket_only_an_old_unfinished_backup_is_removed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    name = "2026-01-31t04-05-06z"
    store.put(f"snapshots/{name}/database.sqlite3.zst", [b"1"])
    bucket = Place("s3://bucket", store, "hub")
    remove_unfinished(bucket)
    assert list(names_in(store)) == [name]
    two_days_ago = (utc_now() - timedelta(days=2)).timestamp()
    path = tmp_path / "snapshots" / name / "database.sqlite3.zst"
    os.utime(path, (two_days_ago, two_days_ago))
    remove_unfinished(bucket)
    assert list(names_in(store)) == []
    store.put(f"snapshots/{name}/database.sqlite3.zst", [b"1"])
    remove_unfinished(Place("folder", store, "hub", is_locked=True))
    assert list(names_in(store)) == []

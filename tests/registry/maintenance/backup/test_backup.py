"""A backup brings everything back, is made of a hub at work, and moves only what is new."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import XetEpoch, Xorb
from deltahub.registry.maintenance.backup.place import PlaceRefused
from deltahub.registry.maintenance.backup.prune import Pruned
from deltahub.registry.maintenance.backup.run import Outcome, backup
from deltahub.registry.maintenance.backup.snapshot import SnapshotNotFound
from deltahub.registry.maintenance.restore.target import RestoreRefused
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.storage.keys import xorb_key
from deltahub.registry.stores.current import HalfRestored, WrongStore
from support.registry.backing_up import findings, names, restored
from support.registry.collecting import age_everything, collect, is_clean
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry, push
from support.registry.small_hub import BASE, NOTES, PATH, TUNE, SmallHub, contents
from support.registry.xet import XorbOf, cut, send_xorb


def back_up(hub: SmallHub, place: Path, **options: object) -> Outcome:
    return backup(hub.reg, str(place), **options)  # type: ignore[arg-type]


def test_everything_comes_back_after_everything_was_lost(hub: SmallHub, tmp_path: Path) -> None:
    waiting = push(hub.reg, hub.ann, "ann/new", {"not-ingested.bin": b"landed" * 999})
    outcome = back_up(hub, tmp_path / "place")
    assert outcome.snapshot.findings == ()
    assert outcome.copied.n_objects == outcome.copied.n_copied > 2
    assert findings(tmp_path / "place") == []
    hub.reg.close()
    shutil.rmtree(hub.reg.data_dir)
    restored(tmp_path / "place", tmp_path / "elsewhere")
    with opened_registry(tmp_path / "elsewhere") as reg:
        again = SmallHub(reg, caller(reg, "ann"), hub.revisions)
        assert again.read("ann/base") == BASE
        assert again.read("ann/tune") == TUNE
        assert again.read("ann/notes", "notes.txt") == NOTES
        assert waiting.job_id is not None
        assert is_clean(reg)
        push_ingested(reg, again.ann, "ann/more", {"a": b"works" * 99})
        # The lost hub may come back and go on with its backups, so this one needs its own place.
        with pytest.raises(PlaceRefused, match="another hub"):
            back_up(again, tmp_path / "place")
        assert back_up(again, tmp_path / "its-place").snapshot.findings == ()


def test_a_second_backup_moves_only_what_is_new(hub: SmallHub, tmp_path: Path) -> None:
    first = back_up(hub, tmp_path / "place").copied
    same = back_up(hub, tmp_path / "place").copied
    assert (same.n_copied, same.proved_bytes) == (0, first.copied_bytes)
    push_ingested(hub.reg, hub.ann, "ann/more", {"new.bin": b"n" * 5000})
    more = back_up(hub, tmp_path / "place", trust_copies=True).copied
    assert (more.n_copied, more.proved_bytes) == (1, 0)
    assert more.n_objects == first.n_objects + 1
    assert len(names(tmp_path / "place")) == 3
    assert findings(tmp_path / "place") == []


def test_a_xorb_is_proved_by_its_hash(hub: SmallHub, tmp_path: Path) -> None:
    push(hub.reg, hub.ann, "ann/xet", {"x": b"1"})
    send_xorb(hub.reg, "ann/xet", XorbOf(cut(b"chunks of a xorb" * 10_000)))
    assert back_up(hub, tmp_path / "place").snapshot.findings == ()
    with hub.reg.db.read() as session:
        key = xorb_key(session.scalars(select(Xorb.id)).one())
    data = bytearray(contents(hub.reg, key))
    data[70_000] ^= 1
    hub.reg.store.put(key, [bytes(data)])
    (found,) = back_up(hub, tmp_path / "another place").snapshot.findings
    assert found.code == "object_damaged"


def test_a_copy_that_was_damaged_in_the_place_is_copied_again(
    hub: SmallHub, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    back_up(hub, place)
    damage(place / "objects/packs")
    assert findings(place) == ["copy_damaged"]
    assert back_up(hub, place).copied.n_copied == 1
    assert findings(place) == []


def damage(folder: Path) -> Path:
    path = sorted(path for path in folder.rglob("*") if path.is_file())[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def test_damage_in_the_hub_is_named_with_its_files_and_an_older_good_copy_stays(
    hub: SmallHub, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    back_up(hub, place)
    lost = hub.pack_of("ann/tune")
    hub.lose("ann/tune")
    outcome = back_up(hub, place, keep=1)
    (found,) = outcome.snapshot.findings
    assert (found.code, found.files) == ("object_missing", (f"'{PATH}' of ann/tune",))
    assert lost in found.target
    assert outcome.pruned is None
    assert len(names(place)) == 2
    # The older copy is in the newer backup, too, so a restore mends the hub.
    assert restored(place, tmp_path / "elsewhere").missing == 0
    with opened_registry(tmp_path / "elsewhere") as reg:
        assert read_file(reg, hub.revisions["ann/tune"], PATH) == TUNE
        assert is_clean(reg)


def test_the_rest_of_a_hub_with_damage_is_backed_up(hub: SmallHub, tmp_path: Path) -> None:
    place = tmp_path / "place"
    hub.flip_a_block("ann/base")
    (found,) = back_up(hub, place).snapshot.findings
    assert found.code == "object_damaged"
    # The fine-tune needs the base.
    assert found.files == (f"'{PATH}' of ann/base", f"'{PATH}' of ann/tune")
    assert restored(place, tmp_path / "elsewhere").missing == 1
    with opened_registry(tmp_path / "elsewhere") as reg:
        assert read_file(reg, hub.revisions["ann/notes"], "notes.txt") == NOTES
        assert not is_clean(reg)  # and says so: the bytes are as damaged as they were


def test_old_backups_go_and_what_only_they_need(hub: SmallHub, tmp_path: Path) -> None:
    place = tmp_path / "place"
    back_up(hub, place)
    gone = hub.pack_of("ann/tune")
    delete_repository(hub.reg, hub.ann, "ann/tune")
    age_everything(hub.reg, 3)
    collect(hub.reg)
    assert back_up(hub, place, keep=9).pruned == Pruned()
    assert findings(place, names(place)[0]) == []
    pruned = back_up(hub, place, keep=2).pruned
    assert pruned is not None
    assert pruned.snapshots == 1
    assert pruned.objects >= 1
    assert len(names(place)) == 2
    assert not list((place / "objects").rglob(gone))
    assert [findings(place, name) for name in names(place)] == [[], []]


def test_a_place_of_something_else_is_refused(hub: SmallHub, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(PlaceRefused, match=r"not empty \(cat.jpg\)"):
        back_up(hub, tmp_path / "photos")
    with pytest.raises(PlaceRefused, match="own data folder"):
        back_up(hub, hub.reg.data_dir / "objects")
    with pytest.raises(PlaceRefused, match="one in the other"):
        back_up(hub, tmp_path)
    (tmp_path / "disk").mkdir()
    (hub.reg.data_dir / "objects").rename(tmp_path / "disk" / "objects")
    (hub.reg.data_dir / "objects").symlink_to(tmp_path / "disk" / "objects")
    with pytest.raises(PlaceRefused, match="one in the other"):
        back_up(hub, tmp_path / "disk" / "objects" / "backup")
    with opened_registry(tmp_path / "another") as reg:
        with pytest.raises(PlaceRefused, match="objects of a hub"):
            back_up(hub, reg.data_dir / "objects")
        backup(reg, str(tmp_path / "place"))
    with pytest.raises(PlaceRefused, match="another hub"):
        back_up(hub, tmp_path / "place")
    with pytest.raises(PlaceRefused, match="no backups"):
        findings(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(SnapshotNotFound):
        findings(tmp_path / "place", "2020-01-01t00-00-00z")
    assert hub.reg.store.held_until() is None


def test_a_restore_overwrites_nothing(hub: SmallHub, tmp_path: Path) -> None:
    back_up(hub, tmp_path / "place")
    with pytest.raises(RestoreRefused, match="is not empty"):
        restored(tmp_path / "place", tmp_path)
    assert hub.read("ann/base") == BASE
    with pytest.raises(RestoreRefused, match="one in the other"):
        restored(tmp_path / "place", tmp_path / "place" / "new")
    assert not (tmp_path / "place" / "new").exists()


def test_a_hub_inside_a_place_of_backups_outlives_them(hub: SmallHub, tmp_path: Path) -> None:
    place = tmp_path / "place"
    back_up(hub, place)
    for folder in ("objects/hub", "damaged/hub"):
        (place / folder / "packs").mkdir(parents=True)
        (place / folder / "packs" / "x").write_bytes(b"another hub's")
    pruned = back_up(hub, place, keep=1).pruned
    assert pruned is not None
    assert (pruned.snapshots, pruned.objects) == (1, 0)


def test_a_damaged_backup_is_refused_by_name_and_makes_no_hub(
    hub: SmallHub, tmp_path: Path
) -> None:
    back_up(hub, tmp_path / "place")
    path = damage(tmp_path / "place/objects/packs")
    good = bytearray(path.read_bytes())
    with pytest.raises(Exception, match=path.name):
        restored(tmp_path / "place", tmp_path / "elsewhere")
    with pytest.raises(HalfRestored, match="run the same"):
        Registry.open(Settings(data_dir=tmp_path / "elsewhere/data"))
    good[len(good) // 2] ^= 1
    path.write_bytes(good)
    restored(tmp_path / "place", tmp_path / "elsewhere")
    with opened_registry(tmp_path / "elsewhere") as reg:
        assert is_clean(reg)


def test_hugging_face_clients_forget_what_they_sent_to_the_lost_hub(
    hub: SmallHub, tmp_path: Path
) -> None:
    back_up(hub, tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "elsewhere")
    with opened_registry(tmp_path / "elsewhere") as reg, reg.db.read() as session:
        epochs = session.scalars(select(XetEpoch.epoch)).all()
    assert len(epochs) == 3
    assert min(epochs) > 60_000


def test_the_lost_hubs_store_is_not_the_restored_ones(hub: SmallHub, tmp_path: Path) -> None:
    back_up(hub, tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "elsewhere")
    elsewhere = tmp_path / "elsewhere/data"
    shutil.rmtree(elsewhere / "objects")
    shutil.copytree(hub.reg.data_dir / "objects", elsewhere / "objects")
    with pytest.raises(WrongStore):
        Registry.open(Settings(data_dir=elsewhere))

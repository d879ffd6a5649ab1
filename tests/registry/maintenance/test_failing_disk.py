"""Scrub and repair go on beside objects that the disk does not read, and on a disk that is full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select, update

from deltahub.registry import Registry
from deltahub.registry.commands import scrub as command
from deltahub.registry.db.models import Landing, Pack, utc_now
from deltahub.registry.losses.findings import open_findings
from deltahub.registry.losses.presence import StoreSeemsAway
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.maintenance.scrub.pace import Pace
from deltahub.registry.maintenance.scrub.run import Scrub
from deltahub.registry.replicas.need import packs_to_copy
from deltahub.registry.storage.keys import landing_key, pack_key
from support.models import tiny_models as tiny
from support.registry.collecting import is_clean
from support.registry.ingested import push_ingested
from support.registry.opened import push
from support.registry.scrubbing import (
    copies,
    copy_key_of,
    findings,
    flip,
    n_lost,
    pack_states,
    scrubbed,
    unreadable,
    uploads,
)
from support.registry.small_hub import BASE, PATH, TUNE, SmallHub
from support.stores.small_disk import SmallDisk


@contextmanager
def opened_again(
    reg: Registry, dependents: int = 1, disk: SmallDisk | None = None
) -> Iterator[Registry]:
    chosen = {"data_dir": reg.data_dir, "second_copy_dependents": dependents}
    with Registry.open(reg.settings.model_copy(update=chosen), disk) as again:
        yield again


@pytest.fixture
def damaged(hub: SmallHub) -> SmallHub:
    """The hub with a second copy of its base's pack, which is damaged."""
    with opened_again(hub.reg) as reg:
        assert scrubbed(reg).restored.copies == 1
    flip(hub.reg, pack_key(hub.pack_of("ann/base")))
    return hub


def packs_in_order(hub: SmallHub) -> list[str]:
    """All packs, the first to be scrubbed first."""
    with hub.reg.db.read() as session:
        return list(session.scalars(select(Pack.id).order_by(Pack.created_at, Pack.id)))


def test_scrub_marks_a_damaged_pack_whose_copy_cannot_be_read_now(damaged: SmallHub) -> None:
    copy = copy_key_of(damaged.reg, damaged.pack_of("ann/base"))
    with unreadable(copy):
        done = scrubbed(damaged.reg)
        assert "not put back from its second copy now" in done.restored.notes[0]
        assert (done.restored.damaged_packs, done.proved) == (1, 2)
        assert findings(damaged.reg) == {
            ("pack", "pack_hash"): "open",
            ("copy", "object_unreadable"): "open",
        }
    assert scrubbed(damaged.reg).restored.packs_from_copies == 1
    assert (pack_states(damaged.reg), n_lost(damaged.reg)) == ({"live"}, 0)
    assert set(findings(damaged.reg).values()) == {"repaired"}
    assert (damaged.read("ann/base"), damaged.read("ann/tune")) == (BASE, TUNE)
    assert is_clean(damaged.reg)


def test_fsck_repair_marks_a_damaged_pack_whose_copy_cannot_be_read_now(damaged: SmallHub) -> None:
    with unreadable(copy_key_of(damaged.reg, damaged.pack_of("ann/base"))):
        done = repair(damaged.reg, read_data=True)
        assert "not put back from its second copy now" in done.notes[0]
        assert done.damaged_packs == 1
        assert "object_unreadable" in {each.code for each in fsck(damaged.reg, read_data=True)}
    assert repair(damaged.reg).packs_from_copies == 1
    assert (pack_states(damaged.reg), n_lost(damaged.reg)) == ({"live"}, 0)


@pytest.mark.parametrize("by", ["scrub", "fsck"])
def test_on_a_full_disk_a_damaged_pack_is_marked_and_its_files_are_still_read(
    damaged: SmallHub, by: str
) -> None:
    disk = SmallDisk()
    with opened_again(damaged.reg, dependents=0, disk=disk) as reg:
        disk.room = 1000
        done = scrubbed(reg).restored if by == "scrub" else repair(reg, read_data=True)
    assert (done.damaged_packs, done.packs_from_copies, done.lost_tensors) == (1, 0, 0)
    assert "no room on the disk" in done.notes[0]
    assert (damaged.read("ann/base"), damaged.read("ann/tune")) == (BASE, TUNE)
    assert scrubbed(damaged.reg).restored.packs_from_copies == 1
    assert pack_states(damaged.reg) == {"live"}


def test_on_a_full_disk_lost_tensors_are_marked_and_stored_again_later(hub: SmallHub) -> None:
    notes = {"notes.txt": b"both know this\n" * 900}
    for name, private in (("ann/secret", True), ("ann/open", False)):
        hub.revisions[name] = push_ingested(hub.reg, hub.ann, name, notes, private=private)
    lost = packs_in_order(hub)[-1]
    hub.reg.store.delete(pack_key(lost))
    disk = SmallDisk()
    with opened_again(hub.reg, disk=disk) as reg:
        disk.room = 100
        done = scrubbed(reg)
    assert (done.restored.tensors_from_elsewhere, done.restored.damaged_packs) == (0, 1)
    assert any("not stored again now" in each for each in done.restored.notes)
    assert scrubbed(hub.reg).restored.tensors_from_elsewhere > 0
    assert n_lost(hub.reg) == 0


def test_on_a_full_disk_no_copies_are_made_and_the_scrub_ends_as_always(hub: SmallHub) -> None:
    disk = SmallDisk()
    with opened_again(hub.reg, disk=disk) as reg:
        disk.room = 1000
        done = scrubbed(reg)
    assert (done.proved, done.n_found, done.restored.copies) == (3, 0, 0)
    assert "gets no second copy now" in done.restored.notes[0]
    with opened_again(hub.reg) as reg:
        assert scrubbed(reg).restored.copies == 1
    assert is_clean(hub.reg)


def test_a_damaged_copy_stays_on_a_full_disk(hub: SmallHub) -> None:
    with opened_again(hub.reg) as reg:
        scrubbed(reg)
    flip(hub.reg, copy_key_of(hub.reg, hub.pack_of("ann/base")))
    disk = SmallDisk()
    with opened_again(hub.reg, disk=disk) as reg:
        disk.room = 1000
        done = scrubbed(reg)
    assert (done.proved, done.n_found, done.restored.copies) == (3, 1, 0)
    assert "stays as it is" in done.restored.notes[0]
    assert scrubbed(hub.reg).restored.copies == 1


def test_a_pack_that_cannot_be_copied_now_does_not_keep_others_from_it(hub: SmallHub) -> None:
    """The worker makes one copy in a step, and ends its work after a step that made none."""
    for name, model, base in (
        ("ann/other", tiny.base(seed=1), None),
        ("ann/others-tune", tiny.finetune(1e-5, seed=1), "ann/other"),
    ):
        hub.revisions[name] = push_ingested(
            hub.reg, hub.ann, name, {PATH: tiny.to_file(model)}, base=base
        )
    with hub.reg.db.read() as session:
        first, second = packs_to_copy(session, 1)
    with opened_again(hub.reg) as reg:
        work = Scrub(reg, Pace())
        with unreadable(pack_key(first)):
            assert work.make_copies(limit=1)
        assert (work.done.restored.copies, copies(reg)[second]) == (1, "live")
        assert "gets no second copy now" in work.done.restored.notes[0]
        assert Scrub(reg, Pace()).make_copies(limit=1)
    assert copies(hub.reg) == {first: "live", second: "live"}


def test_an_upload_that_the_disk_does_not_read_stops_no_scrub(hub: SmallHub) -> None:
    for i in range(2):
        push(hub.reg, hub.ann, f"ann/new{i}", {"x": os.urandom(6000)})
    bad = uploads(hub.reg)[0]
    with unreadable(landing_key(bad)):
        done = scrubbed(hub.reg)
    assert (done.proved, [code for code, _ in done.found]) == (4, ["object_unreadable"])
    assert findings(hub.reg) == {("landing", "object_unreadable"): "open"}
    scrubbed(hub.reg)
    assert findings(hub.reg) == {("landing", "object_unreadable"): "repaired"}


def test_fsck_repair_leaves_a_damaged_upload_that_cannot_be_read(hub: SmallHub) -> None:
    push(hub.reg, hub.ann, "ann/new", {"x": os.urandom(6000)})
    [upload] = uploads(hub.reg)
    with hub.reg.db.write() as session:
        session.get_one(Landing, upload).state = "damaged"
    with unreadable(landing_key(upload)):
        assert "stays as it is" in repair(hub.reg).notes[0]
    assert repair(hub.reg).restored_uploads == 1


def test_a_bad_region_of_a_disk_is_noted_and_the_rest_is_proved(hub: SmallHub) -> None:
    for i in range(3):
        push_ingested(hub.reg, hub.ann, f"ann/x{i}", {"a.bin": os.urandom(3000)})
    packs = packs_in_order(hub)
    for bad in (packs[:3], packs[-3:], packs[:-1]):
        with unreadable(*bad):
            done = scrubbed(hub.reg)
        assert (done.proved, done.n_found, done.is_done) == (len(packs) - len(bad), len(bad), True)
        with hub.reg.db.read() as session:
            assert {each.object_id for each in open_findings(session)} == set(bad)
        assert scrubbed(hub.reg).proved == len(packs)
    assert pack_states(hub.reg) == {"live"}
    with unreadable(*packs), pytest.raises(StoreSeemsAway):
        scrubbed(hub.reg)
    assert set(findings(hub.reg).values()) == {"repaired"}


def run_scrub(reg: Registry, *options: str) -> Result:
    arguments = [*options, "--data-dir", str(reg.data_dir)]
    return CliRunner().invoke(command.scrub, arguments, catch_exceptions=False)


@pytest.mark.parametrize("n_bad", [1, 2])
def test_the_last_objects_of_the_list_are_noted_too(hub: SmallHub, n_bad: int) -> None:
    with unreadable(*packs_in_order(hub)[-n_bad:]):
        told = run_scrub(hub.reg, "--all")
    assert told.exit_code == 1
    assert "object_unreadable" in told.stdout
    assert findings(hub.reg) == {("pack", "object_unreadable"): "open"}


def test_an_object_that_fails_just_before_a_limit_is_noted(hub: SmallHub) -> None:
    """Otherwise each slice of the worker would begin with it, and never come further."""
    first = packs_in_order(hub)[0]
    with hub.reg.db.write() as session:
        past = utc_now() - timedelta(days=1)
        session.execute(update(Pack).where(Pack.id == first).values(created_at=past))
    work = Scrub(hub.reg, Pace())
    before = utc_now()
    with unreadable(first):
        work.run(before, limit_s=1e-9)
        work.run(before, limit_bytes=1)
    assert findings(hub.reg) == {("pack", "object_unreadable"): "open"}

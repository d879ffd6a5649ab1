"""gc deletes all garbage, and nothing else."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from deltahub.codecs.frames.pack import live_pack_bytes
from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.commit import AddFile, DeleteFile, commit
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.commands.maintenance import plan_lines
from deltahub.registry.db.models import File, Frame, Hold, Landing, Pack, Tensor, utc_now
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import Conflict
from deltahub.registry.jobs import queue
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.apply import Outcome, apply_gc
from deltahub.registry.maintenance.gc.plan import Plan, plan_gc
from deltahub.registry.storage.base import ObjectNotFound, Unfinished
from deltahub.registry.storage.forwarding import ForwardingStore
from deltahub.registry.storage.keys import landing_key, pack_key
from deltahub.registry.uploads.landing import begin, receive
from support.models import tiny_models as tiny
from support.registry.collecting import age_everything, collect, count, is_clean, n_objects
from support.registry.ingested import push_ingested, read_file, stored_tensors
from support.registry.opened import caller, opened_registry, push, upload

PATH = "model.safetensors"
BASE = tiny.to_file(tiny.base())
TUNE = tiny.to_file(tiny.finetune(1e-5))


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def test_a_hub_where_all_is_needed_has_an_empty_plan(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE, "config.json": b"{}"})
    push_ingested(reg, ann, "ann/tune", {PATH: TUNE}, base="ann/base")
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    assert (plan.files, plan.tensors, plan.condemn, plan.repack, plan.doubts) == ((),) * 5
    assert plan.freed_bytes == 0
    assert collect(reg) == Outcome()
    assert is_clean(reg)


def test_a_plan_changes_nothing(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    delete_repository(reg, ann, "ann/base")
    before = (count(reg, Tensor), count(reg, Pack), n_objects(reg))
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    assert plan.tensors
    assert (count(reg, Tensor), count(reg, Pack), n_objects(reg)) == before


def test_a_deleted_repository_leaves_nothing_behind(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE, "config.json": b"{}"})
    delete_repository(reg, ann, "ann/base")
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    freed = plan.freed_bytes
    assert freed == sum(item.size for item in reg.store.list(""))
    assert apply_gc(reg, plan).freed_bytes == freed
    assert n_objects(reg) == 0
    assert count(reg, Tensor) == count(reg, Frame) == count(reg, Pack) == count(reg, File) == 0
    assert is_clean(reg)


def test_a_condemned_pack_waits_for_its_readers(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    delete_repository(reg, ann, "ann/base")
    age_everything(reg, days=2)
    first = collect(reg, lease_s=3600)
    assert first.condemned >= 1
    assert first.deleted == 0
    assert n_objects(reg) == first.condemned
    assert collect(reg, lease_s=3600).deleted == 0
    age_everything(reg, days=2)
    assert collect(reg, lease_s=3600).deleted == first.condemned
    assert n_objects(reg) == 0


def test_what_is_younger_than_the_grace_stays(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    delete_repository(reg, ann, "ann/base")
    plan = plan_gc(reg)
    assert plan.files == ()
    assert plan.tensors == ()


def test_a_base_stays_as_an_unnamed_anchor_while_deltas_need_it(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    tune = push_ingested(reg, ann, "ann/tune", {PATH: TUNE}, base="ann/base")
    delete_repository(reg, ann, "ann/base")
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    needed = {base for stored in stored_tensors(reg, tune).values() for base in stored.bases}
    assert plan.anchors == len(needed)
    assert plan.anchor_bytes > 0
    assert needed.isdisjoint(plan.tensors)
    collect(reg)
    assert read_file(reg, tune, PATH) == TUNE
    assert is_clean(reg)
    delete_repository(reg, ann, "ann/tune")
    collect(reg)
    collect(reg)
    assert n_objects(reg) == 0


def test_a_hold_keeps_a_tensor_until_it_expires(reg: Registry, ann: Caller) -> None:
    revision = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    tensor = stored_tensors(reg, revision)["up.weight"].id
    delete_repository(reg, ann, "ann/base")
    with reg.db.write() as session:
        session.add(Hold(tensor_id=tensor, expires_at=utc_now() + timedelta(hours=1)))
    collect(reg)
    with reg.db.read() as session:
        assert session.scalars(select(Tensor.id)).all() == [tensor]
    with reg.db.write() as session:
        session.execute(update(Hold).values(expires_at=utc_now() - timedelta(seconds=1)))
    collect(reg)
    assert count(reg, Tensor) == count(reg, Hold) == 0


def test_an_expired_hold_of_an_open_job_still_holds(reg: Registry, ann: Caller) -> None:
    revision = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    tensor = stored_tensors(reg, revision)["up.weight"].id
    delete_repository(reg, ann, "ann/base")
    past = utc_now() - timedelta(days=1)
    with reg.db.write() as session:
        job = queue.enqueue(session, "ingest", {"revision_id": 0})
        session.add(Hold(tensor_id=tensor, job_id=job, expires_at=past))
    collect(reg)
    assert count(reg, Tensor) == 1
    with reg.db.write() as session:
        queue.mark_cancelled(session, job)
    collect(reg)
    assert count(reg, Tensor) == 0


def test_what_is_referred_to_between_plan_and_apply_stays(reg: Registry, ann: Caller) -> None:
    revision = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    tensor = stored_tensors(reg, revision)["up.weight"].id
    delete_repository(reg, ann, "ann/base")
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    assert tensor in plan.tensors
    with reg.db.write() as session:
        session.add(Hold(tensor_id=tensor, expires_at=utc_now() + timedelta(hours=1)))
    outcome = apply_gc(reg, plan)
    assert outcome.tensors == len(plan.tensors) - 1
    assert outcome.condemned == outcome.deleted == 0
    assert is_clean(reg)


def test_a_file_committed_again_between_plan_and_apply_stays(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/one", {PATH: BASE})
    delete_repository(reg, ann, "ann/one")
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    again = push_ingested(reg, ann, "ann/two", {PATH: BASE})
    apply_gc(reg, plan)
    assert read_file(reg, again, PATH) == BASE
    assert is_clean(reg)


def test_earlier_revisions_keep_what_they_list(reg: Registry, ann: Caller) -> None:
    first = push_ingested(reg, ann, "ann/m", {"a.bin": b"a" * 5000, "b.bin": b"b" * 5000})
    commit(reg, ann, "ann/m", "main", [DeleteFile("a.bin")], "drop a")
    collect(reg)
    assert read_file(reg, first, "a.bin") == b"a" * 5000


def test_an_expired_upload_is_deleted_with_its_bytes(reg: Registry, ann: Caller) -> None:
    sha256 = upload(reg, ann, b"never committed" * 1000)
    assert plan_gc(reg).uploads == ()
    age_everything(reg, days=2)
    plan = plan_gc(reg)
    assert plan.freed_bytes == 15_000
    outcome = apply_gc(reg, plan)
    assert (outcome.uploads, outcome.freed_bytes) == (1, 15_000)
    assert count(reg, Landing) == n_objects(reg) == 0
    assert upload(reg, ann, b"never committed" * 1000) == sha256
    assert is_clean(reg)


def test_an_expired_unfinished_upload_loses_its_spool(reg: Registry, ann: Caller) -> None:
    data = b"x" * 1000
    begun = receive(reg, ann, "a" * 64, 2000, 0, [data])
    age_everything(reg, days=2)
    assert collect(reg).uploads == 1
    assert list(reg.spool.list()) == []
    assert not begun.is_complete


def test_an_upload_that_is_being_received_is_left_alone(reg: Registry, ann: Caller) -> None:
    receive(reg, ann, "a" * 64, 2000, 0, [b"x" * 1000])
    upload_id = next(reg.spool.list())
    age_everything(reg, days=2)
    with reg.spool.open(upload_id, 2000):
        assert collect(reg).uploads == 0
    assert begin(reg, ann, "a" * 64, 2000).received == 1000


def test_the_upload_of_a_committed_file_stays_however_old(reg: Registry, ann: Caller) -> None:
    push(reg, ann, "ann/m", {"a.bin": b"a" * 5000})
    with reg.db.write() as session:
        session.execute(update(Job).values(state="failed"))
    age_everything(reg, days=9)
    outcome = collect(reg)
    assert outcome.uploads == outcome.files == 0
    assert is_clean(reg)


def test_a_crash_between_condemning_and_deleting_an_upload_is_made_good(
    reg: Registry, ann: Caller
) -> None:
    upload(reg, ann, b"data")
    age_everything(reg, days=2)
    with reg.db.write() as session:
        row = session.scalars(select(Landing)).one()
        row.state, row.sha256 = "condemned", f"condemned-{row.id}"
        reg.store.delete(landing_key(row.id))
    assert upload(reg, ann, b"data")
    assert collect(reg).uploads == 1
    assert count(reg, Landing) == 1
    assert is_clean(reg)


def test_a_pack_of_a_dead_writer_goes_and_that_of_a_running_job_stays(
    reg: Registry, ann: Caller
) -> None:
    old = utc_now() - timedelta(hours=3)
    push_ingested(reg, ann, "ann/m", {"a.bin": b"a" * 5000})
    with reg.db.write() as session:
        job = queue.enqueue(session, "ingest", {"revision_id": 0})
        queue.mark_running(session, job)
        session.execute(update(Job).where(Job.id == job).values(started_at=old))
        domain_id = session.scalars(select(Pack.domain_id)).first()
        session.add(Pack(id="f" * 32, domain_id=domain_id, state="writing", size=9, created_at=old))
    reg.store.put(pack_key("f" * 32), [b"unfinished"])
    assert plan_gc(reg).abandoned == ()
    with reg.db.write() as session:
        queue.mark_failed(session, job, "job_failed", "killed")
    outcome = collect(reg, lease_s=3600)
    assert outcome.condemned == 1
    age_everything(reg, days=1)
    assert collect(reg, lease_s=3600).deleted == 1
    with pytest.raises(ObjectNotFound):
        reg.store.size(pack_key("f" * 32))


def test_unknown_objects_are_reported_and_deleted_only_when_asked(
    reg: Registry, ann: Caller
) -> None:
    reg.store.put("packs/ab/" + "ab" * 16, [b"whose is this?"])
    plan = plan_gc(reg, lease_s=0, grace_s=0, is_full=True)
    assert [item.id for item in plan.unknown] == ["packs/ab/" + "ab" * 16]
    assert plan.freed_bytes == 0
    apply_gc(reg, plan)
    assert n_objects(reg) == 1
    told = "\n".join(plan_lines(plan, delete_unknown=True))
    assert "objects that no row knows, to delete: 1" in told
    assert f"frees {plan.unknown[0].size_bytes} B now" in told
    assert "--delete-unknown deletes them" in "\n".join(plan_lines(plan))
    assert apply_gc(reg, plan, delete_unknown=True).unknown == 1
    assert n_objects(reg) == 0


def test_what_others_put_under_the_hubs_prefix_is_none_of_its_business(reg: Registry) -> None:
    class Shared(ForwardingStore):
        """A bucket whose hub has another one, and a backup, below its prefix."""

        def unfinished(self) -> Iterator[Unfinished]:
            for key in ("two/packs/ab/" + "ab" * 16, "packs/ab/" + "ab" * 16):
                yield Unfinished(key, key, 9, utc_now() - timedelta(days=9))

    for key in ("two/packs/ab/" + "ab" * 16, "backup/snapshots/2026-01-01t00-00-00z/snapshot.json"):
        reg.store.put(key, [b"another's"])
    reg.store.inner = Shared(reg.store.inner)
    plan = plan_gc(reg, lease_s=0, grace_s=0, is_full=True)
    assert plan.unknown == ()
    assert [put.key for put in plan.unfinished] == ["packs/ab/" + "ab" * 16]
    assert list(fsck(reg)) == []
    assert n_objects(reg) == 2


def test_leftover_scratch_files_go_once_they_are_old(reg: Registry) -> None:
    old, young = reg.scratch / "old.pack", reg.scratch / "young.pack"
    old.write_bytes(b"x" * 100)
    young.write_bytes(b"x" * 100)
    os.utime(old, (0, 0))
    collect(reg)
    assert not old.exists()
    assert young.exists()


def test_a_jobs_folder_goes_once_all_in_it_is_old(reg: Registry) -> None:
    old, used, other = reg.job_folder("old"), reg.job_folder("used"), reg.scratch / "other"
    for folder in (old, used, other):
        folder.mkdir()
        (folder / "file").write_bytes(b"x" * 100)
        os.utime(folder, (0, 0))
    os.utime(old / "file", (0, 0))
    os.utime(other / "file", (0, 0))
    assert plan_gc(reg).freed_bytes == 100
    collect(reg)
    assert not old.exists()
    assert used.exists()
    assert other.exists()  # no job's


def test_what_a_dead_put_wrote_goes_once_it_is_old(reg: Registry) -> None:
    folder = reg.data_dir / "objects" / ".tmp"
    old, young = folder / "old", folder / "young"
    old.write_bytes(b"x" * 100)
    young.write_bytes(b"x" * 100)
    os.utime(old, (0, 0))
    plan = plan_gc(reg)
    assert [(put.id, put.size_bytes) for put in plan.unfinished] == [("old", 100)]
    assert plan.freed_bytes == 100
    assert apply_gc(reg, plan).unfinished == 1
    assert not old.exists()
    assert young.exists()


def test_a_put_that_went_on_since_the_plan_is_left_alone(reg: Registry) -> None:
    slow = reg.data_dir / "objects" / ".tmp" / "slow"
    slow.write_bytes(b"x" * 100)
    os.utime(slow, (0, 0))
    plan = plan_gc(reg)
    slow.write_bytes(b"x" * 200)
    assert apply_gc(reg, plan).unfinished == 0
    assert slow.exists()


def test_gc_touches_nothing_when_packs_are_missing(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    push_ingested(reg, ann, "ann/gone", {"a.bin": b"a" * 5000})
    delete_repository(reg, ann, "ann/gone")
    reg.store.delete(next(iter(reg.store.list("packs/"))).key)
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    with pytest.raises(Conflict, match="fsck"):
        apply_gc(reg, plan)
    assert count(reg, File) == 2


def test_gc_touches_nothing_when_the_clock_ran_back(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {"a.bin": b"a" * 5000})
    with reg.db.write() as session:
        session.execute(update(Pack).values(created_at=utc_now() + timedelta(days=1)))
    plan = plan_gc(reg)
    assert "clock" in plan.doubts[0]
    with pytest.raises(Conflict):
        apply_gc(reg, plan)


def test_the_plan_is_data_and_text(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    delete_repository(reg, ann, "ann/base")
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    assert isinstance(plan, Plan)
    data = plan.as_dict()
    assert data["freed_bytes"] == plan.freed_bytes
    assert "frees 0 B now" not in list(plan_lines(plan))[-1]


def test_live_pack_bytes_is_the_size_of_a_full_pack(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    with reg.db.read() as session:
        for pack in session.scalars(select(Pack)):
            lengths = session.scalars(select(Frame.length).where(Frame.pack_id == pack.id)).all()
            assert live_pack_bytes(len(lengths), sum(lengths)) == pack.size


def test_adding_a_file_again_after_gc_starts_afresh(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    delete_repository(reg, ann, "ann/base")
    collect(reg)
    again = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    assert read_file(reg, again, PATH) == BASE
    sha256 = upload(reg, ann, b"tiny")
    commit(reg, ann, "ann/base", "main", [AddFile("t", sha256, 4)], "add")
    assert is_clean(reg)

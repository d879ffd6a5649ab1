"""The job that makes a base private or deletes it: kills, refusals, a full disk, late models."""

from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.registry import Caller, Registry
from deltahub.registry.access.organizations import add_member, create_organization
from deltahub.registry.catalog.commit import AddFile
from deltahub.registry.catalog.repositories import get_repository
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Forbidden, RegistryError, RepositoryNotFound, StorageFull
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.ingest.verify_recipe import verify_recipe
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.requests import cancel_job, error_of, get_job
from deltahub.registry.packs.writer import PackSpool
from deltahub.registry.reencode.withdraw import Change, WithdrawJob, withdraw
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.recipes import submit_recipe
from support import forked
from support.registry.collecting import is_clean
from support.registry.ingested import declare, push_ingested, read_file, run_replans
from support.registry.opened import caller, opened_registry, push, sha256_of, upload
from support.registry.withdrawing import (
    BASE,
    CHANGES,
    OUTSIDE,
    PATH,
    SILENT,
    TUNES,
    Models,
    check_files,
    needs_base,
    run_withdrawal,
    tune,
    withdraw_now,
)
from support.service.client_door import pack_and_recipe


def begun(reg: Registry, who: Caller, change: Change = "private") -> WithdrawJob:
    """The running job for ann/base."""
    asked = withdraw(reg, who, "ann/base", change)
    assert asked is not None
    with reg.db.write() as session:
        assert queue.mark_running(session, asked.job_id)
    return WithdrawJob(reg, FileReader(reg), asked.job_id, change, who.scope)


def is_gone(reg: Registry, name: str = "ann/base") -> bool:
    try:
        return get_repository(reg, None, name).is_private
    except RepositoryNotFound:
        return True


def test_a_repeated_request_waits_for_the_same_job(
    reg: Registry, ann: Caller, models: Models
) -> None:
    first, again = (withdraw(reg, ann, "ann/base", "private") for _ in range(2))
    assert first == again
    deleting = withdraw(reg, ann, "ann/base", "delete")
    assert first is not None
    assert deleting is not None
    assert deleting.job_id != first.job_id
    run_withdrawal(reg, deleting.job_id)
    assert is_gone(reg)
    assert get_job(reg, ann, first.job_id).state == "cancelled"


def test_a_cancelled_job_changes_nothing_and_may_be_asked_for_again(
    reg: Registry, ann: Caller, models: Models
) -> None:
    asked = withdraw(reg, ann, "ann/base", "private")
    assert asked is not None
    cancel_job(reg, ann, asked.job_id)
    assert isinstance(error_of(get_job(reg, ann, asked.job_id)), RegistryError)
    assert not is_gone(reg)
    again = withdraw(reg, ann, "ann/base", "private")
    assert again is not None
    assert again.job_id != asked.job_id
    run_withdrawal(reg, again.job_id)
    assert is_gone(reg)


@pytest.mark.parametrize("change", CHANGES)
def test_deltas_that_come_meanwhile_are_stored_without_it_too(
    reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A base of a new delta is chosen before the change is asked for, and switched to after it."""
    encode = PackSpool.encode
    asked: list[WithdrawJob] = []

    def encode_while_it_leaves(self: PackSpool, *args: object, **options: object) -> None:
        if not asked:
            asked.append(begun(reg, ann, change))
        encode(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PackSpool, "encode", encode_while_it_leaves)
    late = push_ingested(reg, bob, "bob/late", {PATH: tune(6e-5)}, base="ann/base")
    monkeypatch.setattr(PackSpool, "encode", encode)
    models.tunes["bob/late"] = late
    assert not needs_base(reg, models, "bob/late")
    (work,) = asked
    while not work.step(SILENT).is_last:
        pass
    assert is_gone(reg)
    run_replans(reg)
    assert not any(needs_base(reg, models, name) for name in (*OUTSIDE, "bob/late"))
    assert read_file(reg, late, PATH) == tune(6e-5)
    check_files(reg, models)


def test_a_delta_whose_file_is_not_finished_counts(
    reg: Registry, ann: Caller, bob: Caller, models: Models
) -> None:
    """No file refers to it yet; the ingest holds it."""
    pushed = push(reg, bob, "bob/late", {PATH: tune(6e-5)}, base="ann/base")
    assert pushed.job_id is not None
    with reg.db.write() as session:
        assert queue.mark_running(session, pushed.job_id)
        revision = session.get_one(Job, pushed.job_id).payload["revision_id"]
    ingest = Ingest(reg, FileReader(reg), revision, pushed.job_id)
    for file_ids in ingest.pending_files():
        ingest.scan(file_ids)
    while ingest.store_next_pack():
        pass
    work = begun(reg, ann)
    while not work.step(SILENT).is_last:
        pass
    for file_ids in ingest.pending_files():
        ingest.finish(file_ids)
    ingest.release()
    models.tunes["bob/late"] = revision
    assert not needs_base(reg, models, "bob/late")
    assert read_file(reg, revision, PATH) == tune(6e-5)
    check_files(reg, models)


def test_a_delta_that_a_client_has_not_committed_yet_counts(
    reg: Registry, ann: Caller, bob: Caller, models: Models
) -> None:
    data = tune(6e-5)
    pack, recipe = pack_and_recipe(data, BASE)
    accept_pack(reg, FileReader(reg), bob, "bob/tuned", upload(reg, bob, pack))
    work = begun(reg, ann)
    while not work.step(SILENT).is_last:
        pass
    submitted = submit_recipe(reg, bob, "bob/tuned", recipe)
    assert submitted.job_id is not None
    with reg.db.write() as session:
        assert queue.mark_running(session, submitted.job_id)
        payload = session.get_one(Job, submitted.job_id).payload
    verify_recipe(reg, FileReader(reg), submitted.job_id, payload)
    add = AddFile(PATH, sha256_of(data), len(data))
    models.tunes["bob/tuned"] = declare(reg, bob, "bob/tuned", None, [add])
    assert not needs_base(reg, models, "bob/tuned")
    assert read_file(reg, models.tunes["bob/tuned"], PATH) == data
    assert is_clean(reg)


def test_the_last_transaction_looks_for_deltas_again(
    reg: Registry, ann: Caller, bob: Caller, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push of the same bytes makes a delta readable outside, and encodes nothing."""
    withdraw_now(reg, ann, "ann/tuned", "private")
    assert needs_base(reg, models, "ann/tuned")
    work = begun(reg, ann)
    finish = WithdrawJob._finish
    answers = []

    def finish_after_push(self: WithdrawJob) -> bool:
        if not answers:
            push_ingested(reg, bob, "bob/late", {PATH: TUNES["ann/tuned"][0]})
        answers.append(finish(self))
        return answers[-1]

    monkeypatch.setattr(WithdrawJob, "_finish", finish_after_push)
    while not work.step(SILENT).is_last:
        pass
    assert answers == [False, True]
    assert is_gone(reg)
    assert not needs_base(reg, models, "ann/tuned")
    check_files(reg, models)


def test_on_a_full_disk_the_model_stays_public_and_nothing_is_lost(
    reg: Registry, ann: Caller, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: PackSpool, *args: object, **options: object) -> None:
        raise StorageFull("no room for 7 bytes")

    work = begun(reg, ann)
    with monkeypatch.context() as patch:
        patch.setattr(PackSpool, "add", full)
        with pytest.raises(StorageFull):
            work.step(SILENT)
    assert not is_gone(reg)
    check_files(reg, models)
    while not work.step(SILENT).is_last:
        pass
    assert is_gone(reg)
    check_files(reg, models)


def test_who_lost_the_right_meanwhile_changes_nothing(reg: Registry) -> None:
    ann, bob = caller(reg, "ann"), caller(reg, "bob")
    create_organization(reg, "lab")
    add_member(reg, "lab", "ann", "admin")
    base = push_ingested(reg, ann, "lab/base", {PATH: tune(1e-5)})
    push_ingested(reg, bob, "bob/tuned", {PATH: tune(2e-5)}, base="lab/base")
    asked = withdraw(reg, ann, "lab/base", "delete")
    assert asked is not None
    add_member(reg, "lab", "ann", "write")
    with pytest.raises(Forbidden):
        run_withdrawal(reg, asked.job_id)
    assert not is_gone(reg, "lab/base")
    assert read_file(reg, base, PATH) == tune(1e-5)


@pytest.mark.parametrize("change", CHANGES)
def test_only_who_administers_it_may_ask(
    reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change
) -> None:
    for who in (bob, caller(reg, "ann", scope="read")):
        with pytest.raises(Forbidden):
            withdraw(reg, who, "ann/base", change)
    with reg.db.read() as session:
        assert session.scalars(select(Job).where(Job.kind == queue.WITHDRAW)).all() == []


DIES = """
import sys
from pathlib import Path
from deltahub.registry import Registry, Settings
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.reencode.withdraw import WithdrawJob
from deltahub.registry.jobs.progress import Progress
with Registry.open(Settings(data_dir=Path(sys.argv[1]))) as reg:
    with reg.db.read() as session:
        payload = session.get_one(Job, sys.argv[2]).payload
    work = WithdrawJob(reg, FileReader(reg), sys.argv[2], payload["change"], payload["scope"])
    while not work.step(Progress(lambda *report: None, lambda: None)).is_last:
        pass
"""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("failpoint", "is_done"),
    [
        ("packs.put.after_put", False),
        ("withdraw.switch.before_commit", False),
        ("withdraw.switch.after_commit:2", False),
        ("withdraw.before_change", False),
        ("withdraw.before_commit", False),
        ("withdraw.after_commit", True),
    ],
)
def test_a_kill_leaves_it_as_it_was_or_changed_and_the_job_goes_on(
    tmp_path: Path, models: Models, change: Change, failpoint: str, is_done: bool
) -> None:
    with opened_registry(tmp_path) as reg:
        asked = withdraw(reg, caller(reg, "ann"), "ann/base", change)
    assert asked is not None
    killed = forked.run(
        "-c", DIES, tmp_path / "data", asked.job_id, environment={"DELTAHUB_FAILPOINT": failpoint}
    )
    assert killed.returncode == -9
    with opened_registry(tmp_path) as reg:
        assert is_clean(reg)
        assert is_gone(reg) == is_done
        check_files(reg, models)
        run_withdrawal(reg, asked.job_id)
        assert is_gone(reg)
        assert not any(needs_base(reg, models, name) for name in OUTSIDE)
        check_files(reg, models)

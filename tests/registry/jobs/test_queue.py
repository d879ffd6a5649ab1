"""Jobs: state changes, and which callers see a job."""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.access import organizations
from deltahub.registry.db.models import Repository, utc_now
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import Forbidden, JobNotFound, Unauthorized
from deltahub.registry.jobs import health, queue, requests
from deltahub.registry.leases import signs_of_life
from support.registry.opened import caller, opened_registry, push


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def enqueue(reg: Registry, who: Caller | None = None, kind: str = "ingest") -> str:
    with reg.db.write() as session:
        user_id = None if who is None else who.user_id
        return queue.enqueue(session, kind, {"revision_id": 1}, user_id=user_id)


def test_a_job_goes_from_queued_over_running_to_done(reg: Registry, alice: Caller) -> None:
    job_id = enqueue(reg, alice)
    with reg.db.write() as session:
        assert queue.mark_running(session, job_id)
        assert queue.report_progress(session, job_id, "encode", 5, 10)
    info = requests.get_job(reg, alice, job_id)
    assert (info.state, info.user) == ("running", "alice")
    assert info.progress == {"stage": "encode", "done_bytes": 5, "total_bytes": 10}
    assert info.started_at is not None
    with reg.db.write() as session:
        assert queue.report_progress(session, job_id, "train", 1, 4, 0.5, (2, 6))
    told = requests.get_job(reg, alice, job_id).progress
    assert told == {"stage": "train", "done_bytes": 1, "total_bytes": 4, "fraction": 0.5,
                    "step": 2, "n_steps": 6}  # fmt: skip
    with reg.db.write() as session:
        assert queue.mark_done(session, job_id, {"saved_bytes": 7})
    info = requests.get_job(reg, alice, job_id)
    assert (info.state, info.result) == ("done", {"saved_bytes": 7})
    assert info.finished_at is not None


def test_a_finished_job_stays_as_it_is(reg: Registry, alice: Caller) -> None:
    job_id = enqueue(reg, alice)
    with reg.db.write() as session:
        queue.mark_running(session, job_id)
        assert queue.mark_failed(session, job_id, "storage_full", "the disk is full")
        assert not queue.mark_done(session, job_id, {})
        assert not queue.mark_running(session, job_id)
        assert not queue.report_progress(session, job_id, "encode", 1, 1)
    assert requests.cancel_job(reg, alice, job_id).state == "failed"
    info = requests.get_job(reg, alice, job_id)
    assert (info.error_code, info.error) == ("storage_full", "the disk is full")
    assert not info.is_cancel_asked


def test_what_no_database_takes_is_escaped_and_long_text_is_cut(
    reg: Registry, alice: Caller
) -> None:
    job_id = enqueue(reg, alice)
    with reg.db.write() as session:
        queue.mark_running(session, job_id)
        queue.add_line(session, job_id, "a\0b \ud800")
        assert queue.mark_failed(session, job_id, "job_failed", "x\0\udfff" + "y" * 10_000_000)
    info = requests.get_job(reg, alice, job_id)
    assert info.error is not None
    assert info.error.startswith("x\\0\\udfffyyy")
    assert len(info.error) < 20_000
    assert [line.text for line in requests.log_of(reg, alice, job_id, 0)] == ["a\\0b \\ud800"]


def test_jobs_are_taken_up_in_order_and_by_kind(reg: Registry) -> None:
    first, third, second = (enqueue(reg, kind=kind) for kind in ("ingest", "replan", "ingest"))
    with reg.db.read() as session:
        assert [job.id for job in queue.next_queued(session, 10)] == [first, second, third]
        assert [job.id for job in queue.next_queued(session, 1)] == [first]
        assert [job.id for job in queue.next_queued(session, 10, ["replan"])] == [third]
    with reg.db.write() as session:
        queue.mark_running(session, first)
        assert [job.id for job in queue.next_queued(session, 10)] == [second, third]
        assert [job.id for job in queue.running(session)] == [first]


def test_a_job_that_runs_is_gone_on_with_after_a_crash(reg: Registry) -> None:
    job_id = enqueue(reg)
    with reg.db.write() as session:
        assert queue.mark_running(session, job_id)
    with reg.db.write() as session:
        assert queue.mark_running(session, job_id)


def test_a_queued_job_is_cancelled_at_once(reg: Registry, alice: Caller) -> None:
    job_id = enqueue(reg, alice)
    assert requests.cancel_job(reg, alice, job_id).state == "cancelled"
    with reg.db.write() as session:
        assert not queue.mark_running(session, job_id)
        assert queue.next_queued(session) == []


def test_a_running_job_is_asked_to_stop(reg: Registry, alice: Caller) -> None:
    job_id = enqueue(reg, alice)
    with reg.db.write() as session:
        queue.mark_running(session, job_id)
    assert requests.cancel_job(reg, alice, job_id).state == "running"
    with reg.db.write() as session:
        assert queue.is_cancel_asked(session, job_id)
        assert not queue.report_progress(session, job_id, "encode", 1, 2)
        assert not queue.mark_running(session, job_id)
        assert queue.mark_cancelled(session, job_id)
    assert requests.get_job(reg, alice, job_id).state == "cancelled"


def test_a_job_that_has_published_is_not_cancelled(reg: Registry, alice: Caller) -> None:
    push(reg, alice, "alice/made", {"a": b"1"})
    with reg.db.write() as session:
        job_id = queue.enqueue(session, "merge", {}, user_id=alice.user_id, lane=queue.COMPUTE)
        queue.mark_running(session, job_id)
        made = session.query(Repository).filter_by(name="made").one()
        session.get_one(Job, job_id).repository_id = made.id
    info = requests.cancel_job(reg, alice, job_id)
    assert (info.state, info.is_cancel_asked) == ("running", False)
    with reg.db.write() as session:
        assert queue.mark_done(session, job_id, {"repository": "alice/made"})
    assert requests.get_job(reg, alice, job_id).state == "done"


def test_a_job_that_fails_because_it_was_cancelled_is_cancelled(
    reg: Registry, alice: Caller
) -> None:
    with reg.db.write() as session:
        job_id = queue.enqueue(session, "merge", {}, user_id=alice.user_id, lane=queue.COMPUTE)
        queue.mark_running(session, job_id)
    requests.cancel_job(reg, alice, job_id)
    with reg.db.write() as session:
        assert queue.mark_failed(session, job_id, "conflict", "the job was cancelled")
    info = requests.get_job(reg, alice, job_id)
    assert (info.state, info.error) == ("cancelled", None)


def test_a_job_is_seen_by_its_user_by_writers_of_its_repository_and_by_admins(
    reg: Registry, alice: Caller
) -> None:
    organizations.create_organization(reg, "lab")
    organizations.add_member(reg, "lab", "alice", "write")
    by_name = {"alice": alice, "root": caller(reg, "root", is_admin=True)}
    for role in ("read", "write"):
        by_name[role] = caller(reg, f"{role}er")
        organizations.add_member(reg, "lab", f"{role}er", role)
    by_name["stranger"] = caller(reg, "stranger")
    job_id = push(reg, alice, "lab/public", {"a": b"1"}).job_id
    assert job_id is not None
    for name in ("alice", "root", "write"):
        assert requests.get_job(reg, by_name[name], job_id).repository == "lab/public"
    for name in ("read", "stranger", "nobody"):
        who = by_name.get(name)
        with pytest.raises(JobNotFound) as raised:
            requests.get_job(reg, who, job_id)
        with pytest.raises(JobNotFound) as absent:
            requests.get_job(reg, who, "0" * 32)
        assert str(raised.value).replace(job_id, "0" * 32) == str(absent.value)
    listed = {name: len(requests.list_jobs(reg, who)) for name, who in by_name.items()}
    assert listed == {"alice": 1, "root": 1, "read": 0, "write": 0, "stranger": 0}
    assert requests.list_jobs(reg, None) == []


def test_cancelling_needs_a_token_that_may_write(reg: Registry, alice: Caller) -> None:
    job_id = enqueue(reg, alice)
    with pytest.raises(Unauthorized):
        requests.cancel_job(reg, None, job_id)
    with pytest.raises(Forbidden):
        requests.cancel_job(reg, caller(reg, "alice", scope="read"), job_id)
    with pytest.raises(JobNotFound):
        requests.cancel_job(reg, caller(reg, "bob"), job_id)


def test_a_job_of_a_transaction_that_failed_does_not_exist(reg: Registry) -> None:
    def enqueue_and_fail() -> None:
        with reg.db.write() as session:
            queue.enqueue(session, "ingest", {})
            raise RuntimeError("something went wrong")

    with pytest.raises(RuntimeError):
        enqueue_and_fail()
    with reg.db.read() as session:
        assert queue.next_queued(session) == []


def fail_for_a_moment(reg: Registry, job_id: str, attempt: int, patience_s: float = 3600) -> None:
    with reg.db.write() as session:
        error = ("storage_full", "the disk is full")
        queue.postpone(session, job_id, attempt, error, longest_pause_s=300, patience_s=patience_s)


def run_again_now(reg: Registry, job_id: str) -> None:
    with reg.db.write() as session:
        session.get_one(Job, job_id).retry_at = None
        assert queue.mark_running(session, job_id)


def test_a_job_that_failed_for_a_moment_waits_with_its_reason_and_growing_pauses(
    reg: Registry, alice: Caller
) -> None:
    signs_of_life.mark_seen(reg)
    job_id = enqueue(reg, alice)
    for attempt, pause_s in enumerate([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]):
        run_again_now(reg, job_id)
        before = utc_now()
        fail_for_a_moment(reg, job_id, attempt)
        pause, after = timedelta(seconds=pause_s), utc_now()
        info = requests.get_job(reg, alice, job_id)
        assert (info.state, info.attempts, info.started_at) == ("queued", attempt + 1, None)
        assert (info.error_code, info.error) == ("storage_full", "the disk is full")
        assert info.waits_for is not None
        assert "the disk is full" in info.waits_for
        assert info.retry_at is not None
        assert before + pause <= info.retry_at <= after + pause
    run_again_now(reg, job_id)
    with reg.db.write() as session:
        assert queue.mark_done(session, job_id, {})
    info = requests.get_job(reg, alice, job_id)
    assert (info.state, info.error, info.retry_at, info.waits_for) == ("done", None, None, None)


def test_a_job_that_fails_for_longer_than_the_patience_fails_for_good(
    reg: Registry, alice: Caller
) -> None:
    job_id = enqueue(reg, alice)
    run_again_now(reg, job_id)
    fail_for_a_moment(reg, job_id, 0)
    run_again_now(reg, job_id)
    fail_for_a_moment(reg, job_id, 1, patience_s=0)
    info = requests.get_job(reg, alice, job_id)
    assert (info.state, info.error_code) == ("failed", "storage_full")
    assert info.error is not None
    assert info.error.startswith("the disk is full (tried 2 times since ")


def test_a_job_that_waits_for_its_next_attempt_is_cancelled_at_once(
    reg: Registry, alice: Caller
) -> None:
    job_id = enqueue(reg, alice)
    run_again_now(reg, job_id)
    fail_for_a_moment(reg, job_id, 0)
    info = requests.cancel_job(reg, alice, job_id)
    assert (info.state, info.error) == ("cancelled", None)


def test_a_running_job_that_should_stop_is_not_repeated(reg: Registry, alice: Caller) -> None:
    job_id = enqueue(reg, alice)
    run_again_now(reg, job_id)
    requests.cancel_job(reg, alice, job_id)
    fail_for_a_moment(reg, job_id, 0)
    assert requests.get_job(reg, alice, job_id).state == "cancelled"


def test_an_attempt_that_is_over_does_not_stop_the_next_one(reg: Registry, alice: Caller) -> None:
    job_id = enqueue(reg, alice)
    run_again_now(reg, job_id)
    fail_for_a_moment(reg, job_id, 0)
    run_again_now(reg, job_id)
    fail_for_a_moment(reg, job_id, 0)
    assert requests.get_job(reg, alice, job_id).state == "running"


def test_a_job_says_whether_it_waits_for_a_worker_or_for_its_turn(
    reg: Registry, alice: Caller
) -> None:
    job_id = enqueue(reg, alice)
    waits_for = requests.get_job(reg, alice, job_id).waits_for
    assert waits_for is not None
    assert waits_for.startswith("a worker: no worker runs on this hub")
    signs_of_life.mark_seen(reg)
    assert requests.get_job(reg, alice, job_id).waits_for == "its turn: other jobs run before it"
    run_again_now(reg, job_id)
    assert requests.get_job(reg, alice, job_id).waits_for is None
    long_ago = time.time() - 100
    os.utime(reg.data_dir / signs_of_life.SEEN_FILE, (long_ago, long_ago))
    waits_for = requests.get_job(reg, alice, job_id).waits_for
    assert waits_for is not None
    assert "no worker has looked for jobs for 1" in waits_for
    signs_of_life.mark_gone(reg)
    assert [each.part for each in health.Health(reg).problems()] == ["worker"]

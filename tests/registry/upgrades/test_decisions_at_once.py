"""Several people decide on one upgrade at the same time."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from deltahub.registry.catalog.repositories import get_repository
from deltahub.registry.db.models import Repository
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import Conflict, RepositoryNotFound
from deltahub.registry.jobs import queue
from deltahub.registry.upgrades import decisions
from deltahub.registry.upgrades.put_back import PutBack, put_back
from deltahub.registry.upgrades.running import advance
from support.registry.collecting import is_clean
from support.registry.opened import push
from support.upgrades.planned import Bases, jobs_of, moves, publish, push_adapter, written

NAMES = ("ann/one", "ann/two", "ann/three")


@pytest.fixture
def upgrade(bases: Bases) -> int:
    """Of three adapters, which move."""
    for name in NAMES:
        push_adapter(bases.reg, bases.ann, name, "ann/v1")
    found = written(bases.reg, bases.ann, bases.old, bases.new, "auto").upgrade_id
    assert found is not None
    assert advance(bases.reg) == len(NAMES)
    return found


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What these calls return, each in a thread of its own; they begin together."""
    barrier = threading.Barrier(len(calls))
    found: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        barrier.wait()
        try:
            found[place] = calls[place]()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


def put_back_by_all(bases: Bases, upgrade: int, n: int = 4) -> list[PutBack]:
    found = at_once(*[lambda: put_back(bases.reg, bases.ann, upgrade)] * n)
    assert all(isinstance(each, PutBack) for each in found), found
    return found


def states(bases: Bases, upgrade: int) -> list[str]:
    return [each.state for each in moves(bases.reg, bases.ann, upgrade).values()]


def test_those_who_put_back_at_once_delete_each_result_once(bases: Bases, upgrade: int) -> None:
    jobs = jobs_of(bases.reg, "transfer_adapter")
    names = [publish(bases.reg, bases.ann, job) for job in jobs]
    advance(bases.reg)
    found = put_back_by_all(bases, upgrade)
    assert sorted(name for each in found for name in each.deleted) == sorted(names)
    assert [each.kept for each in found] == [[]] * len(found)
    assert states(bases, upgrade) == ["put_back"] * len(NAMES)
    assert is_clean(bases.reg)


def test_those_who_put_back_at_once_stop_each_move_once(bases: Bases, upgrade: int) -> None:
    found = put_back_by_all(bases, upgrade)
    assert sorted(name for each in found for name in each.cancelled) == sorted(NAMES)
    assert states(bases, upgrade) == ["put_back"] * len(NAMES)
    assert len(jobs_of(bases.reg, "transfer_adapter", "cancelled")) == len(NAMES)


def test_a_changed_result_stays_for_all_who_put_back_at_once(bases: Bases, upgrade: int) -> None:
    jobs = jobs_of(bases.reg, "transfer_adapter")
    names = [publish(bases.reg, bases.ann, job) for job in jobs]
    advance(bases.reg)
    push(bases.reg, bases.ann, names[0], {"README.md": b"# Ours\n"})
    found = put_back_by_all(bases, upgrade)
    assert [[each.result for each in one.kept] for one in found] == [[names[0]]] * len(found)
    assert sorted(name for each in found for name in each.deleted) == sorted(names[1:])
    assert get_repository(bases.reg, bases.ann, names[0]).head is not None


def test_what_is_approved_while_another_puts_back_is_one_or_the_other(
    bases: Bases, upgrade: int
) -> None:
    def approve() -> tuple[str, ...]:
        return decisions.approve(bases.reg, bases.ann, upgrade, NAMES).adapters

    for turn in range(6):
        if turn % 2:  # their results are there
            for job in jobs_of(bases.reg, "transfer_adapter", "queued"):
                publish(bases.reg, bases.ann, job)
            advance(bases.reg)
        told = at_once(lambda: put_back(bases.reg, bases.ann, upgrade), approve, approve)
        assert not any(isinstance(each, BaseException) for each in told), told
        advance(bases.reg)
        found = moves(bases.reg, bases.ann, upgrade)
        active = {job.id for job in jobs_of(bases.reg, "transfer_adapter", *queue.ACTIVE)}
        for each in found.values():
            assert each.state in ("put_back", "queued", "running")
            assert (each.job_id in active) == (each.state != "put_back")
        assert len(active) == len([each for each in states(bases, upgrade) if each != "put_back"])
        with bases.reg.db.read() as session:
            assert not session.query(Repository).filter(Repository.name.like("%-v2%")).all()
        approve()
        advance(bases.reg)
        assert set(states(bases, upgrade)) <= {"queued", "running"}


def test_a_move_begins_again_once_the_one_that_was_put_back_has_stopped(
    bases: Bases, upgrade: int
) -> None:
    job = jobs_of(bases.reg, "transfer_adapter")[0]
    with bases.reg.db.write_beside() as session:
        queue.mark_running(session, job.id)
    put_back(bases.reg, bases.ann, upgrade)
    with pytest.raises(Conflict, match=r"ann/one cannot move: .* is just being stopped"):
        decisions.approve(bases.reg, bases.ann, upgrade, ["ann/one"])
    # Nor does a new plan forget the job.
    written(bases.reg, bases.ann, bases.old, bases.new, "auto")
    assert moves(bases.reg, bases.ann, upgrade)["ann/one"].state == "put_back"
    with bases.reg.db.write_beside() as session:
        queue.mark_cancelled(session, job.id)
    assert decisions.approve(bases.reg, bases.ann, upgrade, ["ann/one"]).adapters == ("ann/one",)


def test_a_job_that_has_published_is_not_cancelled_but_taken_back(
    bases: Bases, upgrade: int
) -> None:
    job = jobs_of(bases.reg, "transfer_adapter")[0]
    name = publish(bases.reg, bases.ann, job)
    with bases.reg.db.write_beside() as session:  # the worker has not written its end yet
        row = session.get_one(Job, job.id)
        result, row.state, row.result = row.result, "running", None
    assert put_back(bases.reg, bases.ann, upgrade).deleted == []
    with pytest.raises(Conflict, match="is just being stopped"):
        decisions.approve(bases.reg, bases.ann, upgrade, ["ann/one"])
    with bases.reg.db.write_beside() as session:
        assert not session.get_one(Job, job.id).is_cancel_asked
        assert queue.mark_done(session, job.id, result or {})
    advance(bases.reg)
    assert states(bases, upgrade) == ["put_back"] * len(NAMES)
    with pytest.raises(RepositoryNotFound):
        get_repository(bases.reg, bases.ann, name)

"""The worker scrubs by itself: in slices, spread over the days of the setting, after all others."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from deltahub.registry import Registry
from deltahub.registry.db.models import Pack, utc_now
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.scrub import Proof
from deltahub.registry.jobs import order, queue
from deltahub.registry.maintenance.scrub.schedule import SLICES, enqueue_if_due, interval_s
from support.registry.scrubbing import proofs
from support.registry.small_hub import SmallHub


@contextmanager
def with_days(reg: Registry, days: float) -> Iterator[Registry]:
    chosen = {"data_dir": reg.data_dir, "scrub_days": days, "second_copy_dependents": 0}
    with Registry.open(reg.settings.model_copy(update=chosen)) as opened:
        yield opened


def pass_time(reg: Registry, days: float) -> None:
    """Make all objects, their proofs and the ticks older."""
    past = timedelta(days=days)
    with reg.db.write() as session:
        for proof in session.scalars(select(Proof)):
            proof.checked_at -= past
        for pack in session.scalars(select(Pack)):
            pack.created_at -= past


def end(reg: Registry, job_id: str) -> None:
    with reg.db.write() as session:
        queue.mark_running(session, job_id)
        queue.mark_done(session, job_id, {})


def test_nothing_is_enqueued_before_half_of_the_time_has_passed(hub: SmallHub) -> None:
    with with_days(hub.reg, 30) as reg:
        assert interval_s(reg) == 3600
        assert enqueue_if_due(reg) is None
        pass_time(reg, 14)
        assert enqueue_if_due(reg) is None
        pass_time(reg, 2)
        assert enqueue_if_due(reg) is not None


def test_one_slice_is_enqueued_at_a_time(hub: SmallHub) -> None:
    with with_days(hub.reg, 30) as reg, with_days(hub.reg, 30) as other:
        enqueue_if_due(reg)
        pass_time(reg, 40)
        job = enqueue_if_due(reg)
        assert job is not None
        assert enqueue_if_due(other) is None
        pass_time(reg, 1)
        assert enqueue_if_due(reg) is None  # the first one is not over
        end(reg, job)
        assert enqueue_if_due(other) is not None


def test_it_can_be_turned_off(hub: SmallHub) -> None:
    with with_days(hub.reg, 0) as reg:
        pass_time(reg, 400)
        assert interval_s(reg) is None
        assert enqueue_if_due(reg) is None
        assert proofs(reg) == {}


def test_a_slice_takes_twice_its_share_of_the_bytes(hub: SmallHub) -> None:
    with with_days(hub.reg, 30) as reg:
        enqueue_if_due(reg)
        pass_time(reg, 40)
        job = enqueue_if_due(reg)
        with reg.db.read() as session:
            payload = session.get_one(Job, job).payload
        stored = sum(item.size for item in reg.store.list(""))
        assert payload["limit_bytes"] == -(-2 * stored // SLICES)


def test_a_scrub_waits_for_all_other_jobs_until_it_is_due(hub: SmallHub) -> None:
    reg = hub.reg
    with reg.db.write() as session:
        session.execute(update(Job).values(state="done"))
        slice_id = queue.enqueue(session, queue.SCRUB, {})
        other = queue.enqueue(session, "replan", {"revision_id": 1}, user_id=hub.ann.user_id)
        assert [job.id for job in queue.next_queued(session, 5)] == [other, slice_id]
        queue.mark_running(session, other)
        assert not order.should_make_room(session, other)
        queue.mark_done(session, other, {})
        queue.mark_running(session, slice_id)
        late = queue.enqueue(session, "replan", {"revision_id": 1}, user_id=hub.ann.user_id)
        assert order.should_make_room(session, slice_id)
        queue.make_room(session, slice_id)
        queue.mark_running(session, late)
        session.get_one(Job, slice_id).due_at = utc_now() - timedelta(seconds=1)
        session.flush()
        assert order.should_make_room(session, late)


@pytest.mark.parametrize("value", ["2050-01-01", "1990-01-01"])
def test_a_clock_that_was_wrong_stops_nothing(hub: SmallHub, value: str) -> None:
    with with_days(hub.reg, 30) as reg:
        enqueue_if_due(reg)
        with reg.db.write() as session:
            for proof in session.scalars(select(Proof)):
                proof.checked_at = datetime.fromisoformat(value).replace(tzinfo=UTC)
            for pack in session.scalars(select(Pack)):
                pack.created_at = datetime.fromisoformat(value).replace(tzinfo=UTC)
        assert enqueue_if_due(reg) is not None

"""The hub remembers what it held: an hour once, however many servers note it; old times by day."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from deltahub.registry import Registry
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.tables.quotas import HubHistory
from deltahub.registry.reports.history import (
    MOST_POINTS,
    HistoryWriter,
    Traffic,
    hour_of,
    read_history,
)
from support.registry.opened import opened_registry

HOUR = timedelta(hours=1)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


def test_several_servers_write_one_row_an_hour_and_each_adds_its_traffic(reg: Registry) -> None:
    first, second = HistoryWriter(reg), HistoryWriter(reg)
    now = hour_of(utc_now())
    for _ in range(3):
        first.note(Traffic(100, 10, 1), now)
        second.note(Traffic(7, 5, 2), now + timedelta(minutes=20))
    (row,) = read_history(reg)
    assert (row.sent_bytes, row.received_bytes, row.requests) == (107, 15, 3)
    first.note(Traffic(150, 10, 4), now + HOUR)
    with reg.db.read() as session:
        assert session.scalar(select(func.count()).select_from(HubHistory)) == 2
        later = session.get_one(HubHistory, now + HOUR)
        assert (later.sent_bytes, later.received_bytes, later.requests) == (50, 0, 3)


def test_after_90_days_a_day_has_one_row_with_the_sums_of_its_hours(reg: Registry) -> None:
    now = datetime(2030, 6, 1, 12, tzinfo=UTC)
    with reg.db.write() as session:
        for n in range(24 * 100):
            session.add(row(now - (n + 1) * HOUR, logical_bytes=n))
    HistoryWriter(reg).note(Traffic(), now)
    with reg.db.read() as session:
        rows = list(session.scalars(select(HubHistory).order_by(HubHistory.at)))
    edge = datetime(2030, 3, 3, tzinfo=UTC)
    old = [each for each in rows if each.at < edge]
    assert len({each.at.date() for each in old}) == len(old) == 10
    whole = old[1:]
    assert all((each.at.hour, each.jobs_done) == (23, 24) for each in whole)
    assert len(rows) == len(old) + (now - edge) // HOUR + 1


def test_a_chart_gets_a_bounded_number_of_points_the_last_of_them_whole(reg: Registry) -> None:
    now = hour_of(utc_now())
    with reg.db.write() as session:
        for n in range(3 * MOST_POINTS + 1):
            session.add(row(now - n * HOUR, logical_bytes=n))
    found = read_history(reg)
    assert len(found) <= MOST_POINTS
    assert found[-1].at == now
    assert found[-1].logical_bytes == 0
    assert sum(each.jobs_done for each in found) == 3 * MOST_POINTS + 1
    assert len(read_history(reg, timedelta(days=1))) == 24


def row(at: datetime, logical_bytes: int) -> HubHistory:
    return HubHistory(
        at=at, n_repositories=1, n_files=1, logical_bytes=logical_bytes, stored_bytes={"pack": 1},
        jobs_done=1, jobs_failed=0, sent_bytes=0, received_bytes=0, requests=0,
    )  # fmt: skip

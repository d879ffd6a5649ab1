"""What PostgreSQL does otherwise than SQLite: locks, lost connections, values it refuses."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, make_url, select, text

from deltahub.registry import Registry
from deltahub.registry.catalog.lists.search import list_repositories
from deltahub.registry.db.models import Domain
from deltahub.registry.db.session import Database
from deltahub.registry.errors import InvalidRequest, Unavailable
from deltahub.registry.jobs import order, queue
from deltahub.registry.reports.codec_totals import CodecCount
from deltahub.registry.reports.hub_totals import connections_in_use, read_totals
from support.registry.opened import caller, push


def test_what_the_database_cannot_hold_is_refused(reg: Registry) -> None:
    ann = caller(reg, "bob")
    assert list_repositories(reg, ann, namespace="a\0b").items == []
    with pytest.raises(InvalidRequest, match="NUL"), reg.db.read() as session:
        session.scalar(select(Domain.key).where(Domain.key == "a\0b"))


def test_who_writes_waits_for_who_writes(reg: Registry, url: str) -> None:
    # What one has read before it writes holds until it commits, also beside another process.
    other = Database(url)
    n_at_once, seen = 4, []

    def create(database: Database) -> None:
        with database.write() as session:
            seen.append(session.scalar(select(func.count()).where(Domain.key == "once")))
            if not seen[-1]:
                time.sleep(0.2)
                session.add(Domain(key="once"))

    with ThreadPoolExecutor(n_at_once) as pool:
        list(pool.map(create, [reg.db, other] * (n_at_once // 2)))
    other.close()
    assert sorted(seen) == [0, 1, 1, 1]


def test_a_server_that_is_away_is_unavailable(url: str) -> None:
    port = make_url(url).port
    assert port is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        away = Database(url.replace(str(port), str(free.getsockname()[1])))
    with pytest.raises(Unavailable, match="cannot be reached"), away.write():
        raise AssertionError("nothing was connected to")
    with pytest.raises(Unavailable, match="cannot be reached"), away.read() as session:
        session.scalar(select(1))
    away.close()


def test_a_session_that_the_server_ends_is_unavailable(reg: Registry) -> None:
    end = text("SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(Unavailable, match="cannot be reached"), reg.db.write() as session:
        session.execute(end)
    with reg.db.write() as session:  # of a new connection
        assert session.scalar(select(1)) == 1


def test_a_lock_that_is_not_had_in_time_is_unavailable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltahub.registry.db.session.BUSY_TIMEOUT_S", 0.2)
    one, other = Database(url), Database(url)
    with one.write():
        with pytest.raises(Unavailable, match="stayed locked"):
            ThreadPoolExecutor(1).submit(_write_nothing, other).result()
    _write_nothing(other)
    one.close()
    other.close()


def _write_nothing(database: Database) -> None:
    with database.write() as session:
        session.scalar(select(1))


def test_jobs_of_users_take_turns_and_make_room(reg: Registry) -> None:
    users = [caller(reg, name).user_id for name in ("turns-a", "turns-b")]
    with reg.db.write() as session:
        nobodys = queue.enqueue(session, "ingest", {})
        first = [queue.enqueue(session, "ingest", {}, user_id=users[0]) for _ in range(2)]
        second = queue.enqueue(session, "ingest", {}, user_id=users[1])
    with reg.db.write() as session:
        assert order.should_make_room(session, first[0])
        taken = []
        while (job := queue.take_next(session)) is not None:
            taken.append(job.id)
            queue.mark_done(session, job.id, {})
    assert taken == [nobodys, first[0], second, first[1]]


def test_the_totals_for_monitoring_are_read_from_postgresql_as_well(reg: Registry) -> None:
    eve = caller(reg, "eve")
    push(reg, eve, "eve/model", {"a.bin": b"12345"})
    totals = read_totals(reg)
    assert totals.n_repositories == 1
    assert totals.logical_bytes == 5
    (job,) = [job for job in totals.jobs if job.kind == "ingest"]
    assert (job.state, job.n_jobs) == ("queued", 1)
    codecs = CodecCount(reg)
    codecs.go_on()
    assert codecs.is_known
    assert codecs.totals == {}
    assert connections_in_use(reg) == {"read": 0, "write": 0}
    committed = reg.measures.read().write_seconds[("committed",)]
    assert sum(committed.counts) > 1

"""The order of jobs: fair between users, short before long, and nobody waits for ever."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.jobs import order, queue
from deltahub.registry.results.asked import Wish, ask
from support.registry.opened import caller, opened_registry, push

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


class Rows:
    """Rows of `jobs`, named by letters; ages and pauses are in seconds."""

    def __init__(self, reg: Registry) -> None:
        self._reg = reg
        self._users: dict[str, int] = {}
        self._names: dict[str, str] = {}

    def add(
        self, name: str, user: str, size_bytes: int = 0, age_s: float = 0, kind: str = "ingest"
    ) -> None:
        if user not in self._users:
            self._users[user] = caller(self._reg, user).user_id
        created_at = utc_now() - timedelta(seconds=age_s)
        with self._reg.db.write() as session:
            job_id = queue.enqueue(
                session, kind, {}, user_id=self._users[user], size_bytes=size_bytes
            )
            job = session.get_one(Job, job_id)
            job.created_at = created_at
            job.due_at = order.due_at(created_at, kind, size_bytes)
        self._names[job_id] = name

    def ask(self, name: str, user: Caller, priority: str) -> None:
        """A person asks for a job."""
        wish = Wish("compare", {"name": name}, None, [f"{user.name}/model"], only_reads=True)
        self._names[ask(self._reg, user, wish, priority=priority).id] = name

    def id_of(self, name: str) -> str:
        return next(job_id for job_id, other in self._names.items() if other == name)

    def take(self, lane: str | None = None) -> str | None:
        with self._reg.db.write() as session:
            job = queue.take_next(session, lane)
            return None if job is None else self._names[job.id]

    def finish(self, name: str) -> None:
        with self._reg.db.write() as session:
            assert queue.mark_done(session, self.id_of(name), {})

    def take_and_finish_all(self, lane: str | None = None) -> str:
        taken = ""
        while (name := self.take(lane)) is not None:
            self.finish(name)
            taken += name
        return taken

    def make_room(self, name: str) -> None:
        with self._reg.db.write() as session:
            assert queue.make_room(session, self.id_of(name))

    def should_make_room(self, name: str) -> bool:
        with self._reg.db.read() as session:
            return order.should_make_room(session, self.id_of(name))

    def fail_for_a_moment(self, name: str) -> None:
        with self._reg.db.write() as session:
            attempt = session.get_one(Job, self.id_of(name)).attempts
            queue.postpone(
                session,
                self.id_of(name),
                attempt,
                ("storage_full", "no room"),
                longest_pause_s=300,
                patience_s=3600,
            )

    def let_time_pass(self, name: str) -> None:
        with self._reg.db.write() as session:
            session.get_one(Job, self.id_of(name)).retry_at = utc_now()


@pytest.fixture
def rows(reg: Registry) -> Rows:
    return Rows(reg)


def test_twenty_jobs_of_one_user_delay_another_user_by_one(rows: Rows) -> None:
    for i, name in enumerate("ABCDEFGHIJKLMNOPQRST"):
        rows.add(name, "busy", age_s=100 - i)
    assert rows.take() == "A"
    rows.add("x", "other")
    rows.finish("A")
    assert rows.take() == "x"
    rows.finish("x")
    assert rows.take_and_finish_all() == "BCDEFGHIJKLMNOPQRST"


def test_users_take_turns_however_many_jobs_each_has(rows: Rows) -> None:
    for i in range(3):
        rows.add("ABC"[i], "ann", age_s=50 - i)
        rows.add("KLM"[i], "bob", age_s=40 - i)
    rows.add("x", "cy")
    assert rows.take_and_finish_all() == "AKxBLCM"


def test_the_user_with_fewer_running_jobs_comes_first(rows: Rows) -> None:
    rows.add("A", "ann", age_s=9)
    rows.add("B", "ann", age_s=8)
    assert rows.take() == "A"
    rows.add("K", "bob")
    assert rows.take() == "K"
    rows.add("L", "bob")
    rows.finish("K")
    # Bob's turn was after Ann's, but Ann has a running job.
    assert rows.take() == "L"
    assert rows.take() == "B"


def test_short_jobs_of_a_user_come_before_long_ones(rows: Rows) -> None:
    rows.add("L", "ann", size_bytes=100 * GIB, age_s=60)
    rows.add("M", "ann", size_bytes=3 * GIB, age_s=50)
    rows.add("S", "ann", size_bytes=MIB, age_s=1)
    rows.add("P", "ann", size_bytes=MIB, age_s=1, kind="prove_recipe")
    rows.add("R", "ann", size_bytes=MIB, age_s=30, kind="replan")
    taken = rows.take_and_finish_all()
    assert sorted(taken[:2]) == ["P", "S"]
    assert taken[2:] == "MRL"


def test_models_of_about_one_size_keep_their_order(rows: Rows) -> None:
    rows.add("B", "ann", size_bytes=15 * GIB, age_s=2)
    rows.add("F", "ann", size_bytes=14 * GIB, age_s=1)
    assert rows.take_and_finish_all() == "BF"


def test_a_long_job_does_not_wait_for_ever_behind_short_ones(rows: Rows) -> None:
    rows.add("L", "ann", size_bytes=1000 * GIB, age_s=3000)
    for name in "ABC":
        rows.add(name, "ann", age_s=1)
    assert rows.take() == "L"


def test_priorities_order_the_jobs_of_one_user_and_no_others(reg: Registry, rows: Rows) -> None:
    ann, bob = caller(reg, "ann"), caller(reg, "bob")
    for user in (ann, bob):
        push(reg, user, f"{user.name}/model", {"x.txt": b"x"})
    for name, priority in (("l", "low"), ("n", "normal"), ("h", "high")):
        rows.ask(name, ann, priority)
    rows.ask("b", bob, "low")
    taken = rows.take_and_finish_all(queue.COMPUTE)
    assert taken.replace("b", "") == "hnl"
    assert taken.index("b") < 2
    with pytest.raises(InvalidRequest, match="'urgent' is no priority: one of high, normal, low"):
        rows.ask("u", ann, "urgent")


def test_a_job_makes_room_for_another_user_and_for_a_shorter_job_of_its_own(rows: Rows) -> None:
    rows.add("L", "ann", size_bytes=10 * GIB)
    assert rows.take() == "L"
    assert not rows.should_make_room("L")
    rows.add("M", "ann", size_bytes=11 * GIB)
    assert not rows.should_make_room("L")
    rows.add("S", "ann")
    assert rows.should_make_room("L")
    rows.make_room("L")
    assert rows.take() == "S"
    rows.finish("S")
    assert rows.take() == "L"
    rows.add("X", "bob", size_bytes=100 * GIB)
    assert rows.should_make_room("L")
    rows.make_room("L")
    assert rows.take() == "X"
    assert rows.should_make_room("X")  # they go on in turns
    rows.make_room("X")
    assert rows.take() == "L"


def test_a_job_that_failed_for_a_moment_lets_others_run_until_its_time_comes(rows: Rows) -> None:
    rows.add("A", "ann", age_s=60)
    assert rows.take() == "A"
    rows.fail_for_a_moment("A")
    assert rows.take() is None
    rows.add("B", "ann")
    assert rows.take() == "B"
    rows.finish("B")
    rows.let_time_pass("A")
    assert rows.take() == "A"


def test_jobs_without_a_user_share_one_turn(reg: Registry, rows: Rows) -> None:
    with reg.db.write() as session:
        nobodys = [queue.enqueue(session, "ingest", {}) for _ in range(2)]
    rows.add("A", "ann")
    with reg.db.write() as session:
        taken = []
        while (job := queue.take_next(session)) is not None:
            taken.append(job.id)
            queue.mark_done(session, job.id, {})
    assert taken.index(rows.id_of("A")) < 2
    assert sorted(taken) == sorted([*nobodys, rows.id_of("A")])

"""Upgrades of bases on PostgreSQL, on a database that an older release made."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from deltahub.registry import Registry
from deltahub.registry.catalog.repositories import delete_repository, get_repository
from deltahub.registry.db import schema
from deltahub.registry.db.tables.comparisons import AdapterKit, Upgrade, UpgradedAdapter
from deltahub.registry.jobs import queue
from deltahub.registry.upgrades import decisions, rules
from deltahub.registry.upgrades.put_back import PutBack, put_back
from deltahub.registry.upgrades.running import advance
from support.adapters.kits import discriminator, push_adapter, put
from support.registry.collecting import count, is_clean
from support.registry.opened import caller, opened_registry
from support.service.postgresql import new_database
from support.upgrades import planned
from support.upgrades.old_schema import WITHOUT_KITS_AND_UPGRADES
from support.upgrades.planned import Bases, jobs_of, moves, publish, state_of, written

_NAMES = ("ann/one", "ann/two", "ann/three")


def test_a_hub_of_version_0011a_takes_kits_and_upgrades(url: str, tmp_path: Path) -> None:
    database = new_database(url, "of_0011a")
    with opened_registry(tmp_path, database_url=database) as reg:
        bases = Bases.pushed(reg)
        planned.push_adapter(reg, bases.ann, "ann/one", "ann/v1")
        weights = push_adapter(reg, bases.ann)
    engine = create_engine(database)
    with engine.begin() as connection:
        for statement in WITHOUT_KITS_AND_UPGRADES:
            connection.execute(text(statement))
    engine.dispose()
    with opened_registry(tmp_path, database_url=database) as reg:
        assert schema.current(reg.db) == schema.head()
        ann = caller(reg, "ann")
        put(reg, ann, weights, discriminator())
        assert count(reg, AdapterKit) == 1
        upgrade = written(reg, ann, bases.old, bases.new, "auto").upgrade_id
        assert upgrade is not None
        assert advance(reg) == 1
        assert moves(reg, ann, upgrade)["ann/one"].state == "queued"
        assert is_clean(reg)


def _at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What these calls return, each in a thread of its own."""
    found: list[Any] = [None] * len(calls)
    faults: list[BaseException] = []

    def run(place: int) -> None:
        try:
            found[place] = calls[place]()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not faults
    return found


def test_an_upgrade_from_its_plan_to_its_end(reg: Registry) -> None:
    bases = Bases.pushed(reg)
    for name in ("ann/one", "ann/two"):
        planned.push_adapter(reg, bases.ann, name, "ann/v1")
    rules.set_policy(reg, bases.ann, "ann/v1", "auto")
    assert rules.read_policy(reg, None, "ann/v1").policy == "auto"
    upgrade = written(reg, bases.ann, bases.old, bases.new).upgrade_id
    assert upgrade is not None
    assert written(reg, bases.ann, bases.old, bases.new).upgrade_id == upgrade
    assert decisions.approve(reg, bases.ann, upgrade).adapters == ("ann/one", "ann/two")
    _look_at_once(reg)
    first, _ = jobs_of(reg, "transfer_adapter")
    name = publish(reg, bases.ann, first)
    _look_at_once(reg)
    told = moves(reg, bases.ann, upgrade)["ann/one"]
    assert (told.state, told.result) == ("published", name)
    assert put_back(reg, bases.ann, upgrade).deleted == [name]
    assert state_of(reg, bases.ann, upgrade) == "put_back"
    # An upgrade outlives its bases, as a row of its own.
    delete_repository(reg, bases.ann, "ann/two")
    delete_repository(reg, bases.ann, "ann/v2")
    assert (count(reg, Upgrade), count(reg, UpgradedAdapter)) == (1, 2)
    assert get_repository(reg, bases.ann, "ann/v1").head is not None
    assert is_clean(reg)


def test_people_who_decide_at_the_same_time(url: str, tmp_path: Path) -> None:
    with opened_registry(tmp_path, database_url=new_database(url, "decided")) as reg:
        bases = Bases.pushed(reg)
        for name in _NAMES:
            planned.push_adapter(reg, bases.ann, name, "ann/v1")
        upgrade = written(reg, bases.ann, bases.old, bases.new, "auto").upgrade_id
        assert upgrade is not None
        for turn in range(6):
            _decide_at_once(bases, upgrade, with_results=turn % 2 == 1)
        assert is_clean(reg)


def _decide_at_once(bases: Bases, upgrade: int, *, with_results: bool) -> None:
    """Two people put back what runs or has moved, while two others approve it again."""
    reg, ann = bases.reg, bases.ann
    advance(reg)
    results = []
    if with_results:
        results = [publish(reg, ann, job) for job in jobs_of(reg, "transfer_adapter", "queued")]
        advance(reg)

    def approve() -> object:
        return decisions.approve(reg, ann, upgrade, _NAMES)

    def back() -> PutBack:
        return put_back(reg, ann, upgrade)

    told = _at_once(back, back, approve, approve, lambda: advance(reg))
    assert [each.kept for each in told[:2]] == [[], []]
    assert sorted(name for each in told[:2] for name in each.deleted) == sorted(results)
    advance(reg)
    found = moves(reg, ann, upgrade).values()
    active = {job.id for job in jobs_of(reg, "transfer_adapter", *queue.ACTIVE)}
    assert {each.job_id for each in found if each.state in ("queued", "running")} == active
    states = {"running" if each.state == "queued" else each.state for each in found}
    assert states <= {"running", "put_back"}
    assert state_of(reg, ann, upgrade) == ("running" if "running" in states else "put_back")
    approve()


def _look_at_once(reg: Registry) -> None:
    """Look for what begins and ended, as several workers do at the same time."""
    _at_once(*[lambda: advance(reg)] * 4)
    assert len(jobs_of(reg, "transfer_adapter")) == 2

"""Health names the parts of the hub that do not work, and a worker only once it is late."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Registry
from deltahub.registry.jobs.health import Health
from deltahub.registry.leases import signs_of_life
from support.registry.opened import opened_registry


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


def parts(of: Health) -> list[str]:
    return [each.part for each in of.problems()]


def test_a_worker_that_is_being_started_is_no_problem_until_it_is_late(reg: Registry) -> None:
    own = Health(reg)
    assert parts(own) == ["worker"]
    own.expect_worker(within_s=0.3)
    assert parts(own) == []
    time.sleep(0.4)
    assert parts(own) == ["worker"]


def test_a_worker_that_came_and_ended_is_a_problem_at_once(reg: Registry) -> None:
    own = Health(reg)
    own.expect_worker()
    signs_of_life.mark_seen(reg)
    assert parts(own) == []
    signs_of_life.mark_gone(reg)
    assert parts(own) == ["worker"]

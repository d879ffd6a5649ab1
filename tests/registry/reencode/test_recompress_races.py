"""Recompression loses nothing if it is killed or runs beside pushes, deletions and re-planning."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltahub.registry import Registry, failpoints
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.reencode.recompress import apply_recompress
from support.models.tiny_models import to_file
from support.registry.collecting import collect
from support.registry.ingested import push_ingested, run_replans, stored_tensors
from support.registry.old_hub import (
    FILES,
    PATH,
    OldHub,
    check,
    make_old_hub,
    model,
    plan,
    recompress_all,
)
from support.registry.opened import caller, opened_registry


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> OldHub:
    return make_old_hub(tmp_path_factory.mktemp("old"))


@pytest.fixture
def hub(made: OldHub, tmp_path: Path) -> OldHub:
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    return OldHub(tmp_path, made.revisions)


@pytest.fixture
def reg(hub: OldHub) -> Iterator[Registry]:
    with opened_registry(hub.folder) as registry:
        yield registry


@pytest.mark.parametrize(
    ("place", "n_left"),
    [
        ("packs.put.after_put", 4),
        ("replan.switch.before_commit", 4),
        ("recompress.replan.done", 2),
        ("recompress.switch.before_commit", 2),
        ("recompress.switch.after_commit", 0),
    ],
)
def test_a_killed_run_loses_nothing_and_the_next_goes_on(
    hub: OldHub, place: str, n_left: int
) -> None:
    child = os.fork()
    if child == 0:
        failpoints._trigger = failpoints._Trigger(place)
        with opened_registry(hub.folder) as reg:
            recompress_all(reg)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with opened_registry(hub.folder) as reg:
        check(reg, hub)
        assert len(plan(reg).tensors) == n_left, "what was done is not done again"
        recompress_all(reg)
        assert plan(reg).tensors == {}
        assert stored_tensors(reg, hub.revisions["ann/sent"])["a.weight"].codec == "fm_delta"
        check(reg, hub)


Race = Callable[[Registry], object]


def delete_sent(reg: Registry) -> None:
    delete_repository(reg, caller(reg, "ann"), "ann/sent")
    collect(reg)
    collect(reg)


def push_more(reg: Registry) -> None:
    ann = caller(reg, "ann")
    push_ingested(reg, ann, "ann/more", {PATH: to_file(model(merged=9))}, base="ann/tune")


@pytest.mark.parametrize(
    ("race", "at"),
    [
        (delete_sent, 1),
        (delete_sent, 3),
        (delete_sent, 5),
        (push_more, 4),
        (run_replans, 3),
        (recompress_all, 5),
    ],
)
def test_what_others_do_meanwhile_is_respected(
    reg: Registry, hub: OldHub, race: Race, at: int
) -> None:
    left = at

    def report(stage: str, done: int, total: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            race(reg)

    apply_recompress(reg, FileReader(reg), plan(reg), report)
    assert left <= 0
    assert plan(reg).tensors == {}
    names = [name for name in FILES if not (race is delete_sent and name == "ann/sent")]
    check(reg, hub, *names)
    collect(reg)
    collect(reg)
    check(reg, hub, *names)

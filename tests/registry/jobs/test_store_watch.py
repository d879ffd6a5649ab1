"""The watch over the store: it notices a store that is away, replaced or hangs, and its return."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deltahub.registry import Registry
from deltahub.registry.jobs.store_watch import StoreWatch
from deltahub.registry.storage.base import MARK
from deltahub.registry.stores.current import OBJECTS
from support.registry.opened import opened_registry

TIMEOUT_S = 10


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@contextmanager
def watching(reg: Registry, slow_s: float = TIMEOUT_S) -> Iterator[StoreWatch]:
    watch = StoreWatch(reg, pause_s=0.05, slow_s=slow_s)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def wait_for(watch: StoreWatch, sentence: str | None) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        problem = watch.problem()
        if problem is None if sentence is None else problem is not None and sentence in problem:
            return
        assert time.monotonic() < deadline, problem
        time.sleep(0.01)


def test_a_folder_that_was_unmounted_is_away_until_it_is_back(
    reg: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    folder = reg.data_dir / OBJECTS
    with watching(reg) as watch:
        time.sleep(0.3)
        assert watch.problem() is None
        folder.rename(reg.data_dir / "elsewhere")
        folder.mkdir()  # the mount point
        wait_for(watch, "does not answer")
        time.sleep(0.3)
        folder.rmdir()
        (reg.data_dir / "elsewhere").rename(folder)
        wait_for(watch, None)
    assert caplog.text.count("the hub is degraded") == 1, "once for each outage"


def test_a_store_of_another_hub_is_not_ours(reg: Registry) -> None:
    mark = reg.data_dir / OBJECTS / MARK
    ours = mark.read_text()
    with watching(reg) as watch:
        mark.write_text("0123\n")
        wait_for(watch, "does not answer")
        mark.write_text(ours)
        wait_for(watch, None)


def test_a_store_that_hangs_is_away_though_it_raises_no_error(reg: Registry) -> None:
    mark = reg.data_dir / OBJECTS / MARK
    ours = mark.read_text()
    mark.unlink()
    os.mkfifo(mark)  # whoever reads it waits for somebody who writes
    others = set(threading.enumerate())  # a hub of other tests may have a watch, too
    with watching(reg, slow_s=0.3) as watch:
        wait_for(watch, "has not answered for")
        began = time.monotonic()
        assert watch.problem() is not None
        assert time.monotonic() - began < 1.0, "who asks for the problem does not wait"
        new = [each.name for each in threading.enumerate() if each not in others]
        assert new.count("store watch") == 1
        blocked = mark.rename(mark.with_name("fifo"))
        mark.write_text(ours)
        blocked.write_text(ours)
        wait_for(watch, None)


def test_the_watch_stops_though_the_store_hangs(reg: Registry) -> None:
    mark = reg.data_dir / OBJECTS / MARK
    ours = mark.read_text()
    mark.unlink()
    os.mkfifo(mark)
    with watching(reg, slow_s=0.3) as watch:
        wait_for(watch, "has not answered for")
        began = time.monotonic()
        watch.stop()
        assert time.monotonic() - began < 5
    mark.write_text(ours)  # lets the thread end

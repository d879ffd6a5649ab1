"""Fixtures: a registry, and workers that run the jobs of engine_process.py."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.forked import Fork
from support.registry.engine_jobs import launch
from support.registry.opened import opened_registry


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as opened:
        yield opened


@pytest.fixture
def start_worker(registry: Registry) -> Iterator[Callable[[], Fork]]:
    started: list[Fork] = []

    def start() -> Fork:
        started.append(launch(registry))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with a worker, for jobs that do not end it."""
    folder = tmp_path_factory.mktemp("working")
    with Registry.open(Settings(data_dir=folder / "what data? 100%")) as opened:
        worker = launch(opened)
        yield opened
        worker.kill()
        worker.wait()

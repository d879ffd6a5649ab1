"""Whoever has a checkpoint pays for the step to the next one, also where a chain begins again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.client import Hub
from support.models.model_folders import contents
from support.service.hub import RunningHub, running_hub

MAX_DEPTH = 3
NAME = "admin/run"


@pytest.fixture
def shallow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    """A hub whose chains of deltas are short, so that a run begins many of them."""
    monkeypatch.setenv("DELTAHUB_MAX_DEPTH", str(MAX_DEPTH))  # of the worker, too
    with running_hub(tmp_path / "data", with_worker=True, max_depth=MAX_DEPTH) as server:
        yield server


def test_each_checkpoint_costs_whoever_has_the_one_before_its_step(
    shallow: RunningHub, run: Iterator[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be(machine: str) -> None:
        monkeypatch.setenv("DELTAHUB_CACHE", str(tmp_path / machine / "deltahub"))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / machine / "hf"))

    received = []
    with Hub(shallow.url, shallow.admin_token) as hub:
        for number in range(3 * MAX_DEPTH):
            folder = next(run)
            be("trainer")
            hub.push(folder, NAME)
            be("reader")
            # In turns into the cache and into a folder, which serve as a base alike.
            to = tmp_path / f"pulled-{number}" if number % 2 else None
            report = hub.pull_with_report(NAME, to=to)
            assert contents(report.path) == contents(folder)
            received.append(report.received)
    step = received[1]
    assert 0.02 * received[0] < step < 0.2 * received[0]
    assert sorted(received[1:])[len(received) // 2] <= 1.1 * step
    # Where a chain begins anew, the difference is the one from the root.
    assert max(received[1:]) <= 2.5 * step

"""Who has a checkpoint pays for the step to the next one; two pulls at once pay for it once."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from deltahub.client import Hub, PullResult
from support.models.model_folders import contents
from support.service.hub import RunningHub, running_hub

MAX_DEPTH = 3
NAME = "admin/run"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A folder for a run of checkpoints: each `next` writes one as a folder of its own."""

    def folders() -> Iterator[Path]:
        torch.manual_seed(1)
        weights = torch.randn(600, 1024) * 0.05
        for number in range(20):
            folder = tmp_path / f"checkpoint-{number}"
            folder.mkdir()
            save_file({"w": weights.to(torch.bfloat16)}, folder / "model.safetensors")
            yield folder
            weights += torch.randn_like(weights) * 0.00004

    return folders()


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


@pytest.mark.parametrize("is_to", [(True, True), (False, False), (False, True)])
def test_two_pulls_of_a_checkpoint_at_once_fetch_its_step_once(
    hub: Hub,
    hub_server: RunningHub,
    name: str,
    run: Iterator[Path],
    other_machine: Callable[[], Path],
    tmp_path: Path,
    is_to: tuple[bool, bool],
) -> None:
    first, second = next(run), next(run)
    hub.push(first, name)
    other_machine()
    hub.pull(name)
    pushed = hub.push(second, name)
    other_machine()
    hub.pull(name, revision=hub.revision(name, pushed.commit).parent or "")
    reports: list[PullResult] = []
    barrier = threading.Barrier(2)

    def pull(to: Path | None) -> None:
        with Hub(hub_server.url, hub_server.admin_token) as own:
            barrier.wait()
            reports.append(own.pull_with_report(name, to=to))

    targets = [tmp_path / f"to-{i}" if each else None for i, each in enumerate(is_to)]
    threads = [threading.Thread(target=pull, args=(to,)) for to in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 2
    for report in reports:
        assert contents(report.path) == contents(second)
    sizes = sorted(report.received for report in reports)
    assert 0.02 * reports[0].size < sizes[1] < 0.15 * reports[0].size
    assert sizes[0] < 0.1 * sizes[1]  # its recipe

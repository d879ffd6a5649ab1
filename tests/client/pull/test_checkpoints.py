"""Two pulls of a checkpoint at once pay for its step once."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltahub.client import Hub, PullResult
from support.models.model_folders import contents
from support.service.hub import RunningHub


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

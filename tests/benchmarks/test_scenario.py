"""The scenario of `make bench` on small models: a real hub, real commands, every door."""

from pathlib import Path

import pytest

from benchmarks.hub import EmbeddedHub, HubFailed, run_cli
from benchmarks.service.run import rows_of, run_scenario

SIZE = 6 << 20


def test_a_pair_goes_through_a_hub_by_every_door_and_is_measured(tmp_path: Path) -> None:
    steps = {row["step"]: row for row in rows_of(run_scenario(SIZE, tmp_path))}
    assert list(steps) == [
        "push base",
        "push fine-tune",
        "upload and ingest",
        "pull, base in cache",
        "download from the server",
        "pull, empty cache",
    ]
    for name in ("push base", "push fine-tune", "pull, base in cache", "pull, empty cache"):
        assert 10 < steps[name]["client_peak_mib"] < 512
    for row in steps.values():
        assert 10 < row["server_peak_mib"] < 512
        assert 10 < row["worker_peak_mib"] < 512
    assert steps["upload and ingest"]["moved_bytes"] > SIZE
    assert steps["download from the server"]["moved_bytes"] > SIZE
    # With the base at hand, only the difference crosses the wire.
    assert steps["push fine-tune"]["moved_bytes"] < SIZE / 2
    assert steps["pull, base in cache"]["moved_bytes"] < SIZE / 2
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_fails_says_what_it_said(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path / "data", tmp_path / "hub.log") as hub:
        environment = hub.client_environment(tmp_path / "cache")
        with pytest.raises(HubFailed, match="admin/absent"):
            run_cli(["pull", "admin/absent"], environment)
    assert not any(Path(f"/proc/{hub.pid}/task").glob("*"))

"""A move that is killed in any of its steps ends with the same bytes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.transfer.report import REPORT_FILE
from deltahub.registry import Registry
from deltahub.registry.maintenance.fsck.run import fsck
from support.merging.recorded import Killed, Recorded
from support.registry.ingested import read_file
from support.registry.opened import caller, opened_registry
from support.transfer.running import asked_with_prompts, push_world, run_transfer

# A change of a step's name is one of these phases less.
PHASES = ("look", "plan", "make inputs up", "answer", "hold", "find the excess", "make copy",
          "make activation_map", "make titok", "measure", "decide", "publish")  # fmt: skip


def pushed(reg: Registry) -> str:
    ann = caller(reg, "ann")
    push_world(reg, ann, "v2")
    return asked_with_prompts(reg, ann, max_loss=1, epochs=3, n=120)


def contents(reg: Registry, result: dict[str, Any]) -> list[str]:
    """The files of the moved adapter, without commits and times, which no two hubs share."""
    from deltahub.registry.access.repositories import load_repository

    assert result["published"], result["reasons"]
    with reg.db.read() as session:
        row = load_repository(session, caller(reg, "ann"), "ann/moved").head_id
    assert row is not None
    report = json.loads(read_file(reg, row, REPORT_FILE))
    for each in report["rungs"]:
        each["cost"] = None
    report["summary"] = None
    files = [json.dumps(report), read_file(reg, row, CONFIG_FILE).decode()]
    files.append(read_file(reg, row, WEIGHTS_FILE).hex())
    return [re.sub("[0-9a-f]{40}", "", files[0]), re.sub("[0-9a-f]{40}", "", files[1]), files[2]]


def test_a_kill_in_any_step_changes_no_byte(tmp_path: Path) -> None:
    with opened_registry(tmp_path / "undisturbed") as reg:
        steps = Recorded()
        whole = contents(reg, run_transfer(reg, pushed(reg), steps))
        n_steps = len(steps.results)
    assert all(any(name.startswith(phase) for name in steps.results) for phase in PHASES)
    for is_late in (False, True):
        with opened_registry(tmp_path / str(is_late)) as reg:
            job = pushed(reg)
            steps = Recorded()
            steps.is_late = is_late
            for number in range(n_steps):
                steps.dies_in = number
                with pytest.raises(Killed):
                    run_transfer(reg, job, steps)
            steps.dies_in = None
            assert contents(reg, run_transfer(reg, job, steps)) == whole
            assert list(fsck(reg, read_data=True)) == []

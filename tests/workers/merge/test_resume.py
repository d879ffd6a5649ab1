"""A merge that is killed in any step goes on there, and ends with the same bytes."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import Tensor
from deltahub.registry.jobs import queue, requests
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.workers.failures import StepFailed
from support.jobs.here import run_job
from support.merging.recorded import Killed, Recorded
from support.merging.running import PATH, asked, branches, push_family
from support.models import tiny_models as tiny
from support.registry.collecting import age_everything, collect, count
from support.registry.ingested import read_file
from support.registry.opened import caller, opened_registry


def contents(reg: Registry, name: str) -> dict[str, bytes]:
    return {ref: read_file(reg, row, PATH) for ref, row in branches(reg, name).items()}


def without_commits(result: Mapping[str, Any]) -> str:
    """The report, whose commits differ from hub to hub by their time."""
    return re.sub("@[0-9a-f]{40}", "", json.dumps(result["report"]))


def test_a_kill_in_any_step_changes_no_byte(tmp_path: Path) -> None:
    with opened_registry(tmp_path / "undisturbed") as reg:
        ann = caller(reg, "ann")
        names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
        steps = Recorded()
        expected = run_job(reg, asked(reg, ann, names), steps)
        whole = contents(reg, "merged")
        n_steps = len(steps.results)
    assert n_steps >= 9
    for is_late in (False, True):
        with opened_registry(tmp_path / str(is_late)) as reg:
            ann = caller(reg, "ann")
            names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
            job = asked(reg, ann, names)
            steps = Recorded()
            steps.is_late = is_late
            for number in range(n_steps):
                steps.dies_in = number
                with pytest.raises(Killed):
                    run_job(reg, job, steps)
            steps.dies_in = None
            result = run_job(reg, job, steps)
            assert without_commits(result) == without_commits(expected)
            assert contents(reg, "merged") == whole
            assert list(fsck(reg, read_data=True)) == []


def test_threads_change_no_byte(tmp_path: Path) -> None:
    found = []
    for threads in (1, 3):
        with opened_registry(tmp_path / str(threads)) as reg:
            ann = caller(reg, "ann")
            names = push_family(reg, ann, [tiny.task(2), tiny.task(3)])
            result = run_job(reg, asked(reg, ann, names), threads=threads)
            found.append((contents(reg, "merged"), result["report"]["main_bytes"]))
    assert found[0] == found[1]


def test_what_an_abandoned_merge_has_stored_is_garbage(reg: Registry, ann: Caller) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    job = asked(reg, ann, names)
    steps = Recorded()
    steps.dies_in = 5
    with pytest.raises(Killed):
        run_job(reg, job, steps)
    before = count(reg, Tensor)
    assert collect(reg).freed_bytes == 0  # the job holds what it has made
    with reg.db.write() as session:
        queue.mark_cancelled(session, job)
    info = requests.get_job(reg, ann, job)
    assert (info.state, info.error) == ("cancelled", None)
    age_everything(reg, days=2)
    assert collect(reg).freed_bytes > 0
    assert count(reg, Tensor) < before
    assert list(fsck(reg, read_data=True)) == []


def test_gc_keeps_what_branches_need_when_the_fine_tunes_are_gone(
    reg: Registry, ann: Caller
) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    run_job(reg, asked(reg, ann, names))
    whole = contents(reg, "merged")
    for name in (*names, "ann/base"):
        delete_repository(reg, ann, name)
    age_everything(reg, days=2)
    collect(reg)
    assert contents(reg, "merged") == whole
    assert list(fsck(reg, read_data=True)) == []


def test_a_model_that_is_deleted_meanwhile_is_named(reg: Registry, ann: Caller) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    job = asked(reg, ann, names)
    steps = Recorded()
    steps.dies_in = 4
    with pytest.raises(Killed):
        run_job(reg, job, steps)
    delete_repository(reg, ann, names[1])
    steps.dies_in = None
    with pytest.raises(
        StepFailed, match=r"ann/task1, which the job.* was deleted meanwhile"
    ) as failure:
        run_job(reg, job, steps)
    assert failure.value.code == "revision_not_found"
    assert not failure.value.is_transient

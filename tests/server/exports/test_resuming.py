"""An export that is killed or cancelled: the same bytes in the end, or nothing at all."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch

from deltahub.client import JobFailed, NotFound
from deltahub.codecs.exports.file import FILE_NAME
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.registry import Registry
from deltahub.registry.db.models import Tensor
from deltahub.registry.jobs import queue
from deltahub.registry.maintenance.fsck.run import fsck
from support.exporting.place import Place
from support.jobs.here import ask_job, run_job
from support.merging.recorded import Killed, Recorded
from support.merging.running import branches
from support.models.tiny_models import base, cast, to_file
from support.registry.collecting import age_everything, collect, count
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry

# So small that each weight is a step.
SMALL_PACKS = 16 << 10
BUDGET = {"bits": "auto", "budget": 6.0}


def pushed(reg: Registry) -> str:
    """Push a model as ann/model, and ask for its export; the job."""
    ann = caller(reg, "ann")
    files = {"model.safetensors": to_file(cast(base(), torch.bfloat16)), "config.json": b"{}\n"}
    push_ingested(reg, ann, "ann/model", files)
    return ask_job(
        reg,
        ann,
        ExportNeuzipArguments.model_validate(
            {"model": "ann/model", "name": "ann/export", **BUDGET}
        ),
    )


def contents(reg: Registry) -> list[str]:
    """The files of the export; commits differ from hub to hub by their time."""
    (row,) = branches(reg, "export").values()
    files = [read_file(reg, row, path) for path in (FILE_NAME, "neuzip.json", "README.md")]
    return [re.sub("@[0-9a-f]{40}", "", each.decode("latin-1")) for each in files]


def test_a_kill_in_any_step_changes_no_byte(tmp_path: Path) -> None:
    with opened_registry(tmp_path / "undisturbed", pack_bytes=SMALL_PACKS) as reg:
        steps = Recorded()
        run_job(reg, pushed(reg), steps)
        whole, n_steps = contents(reg), len(steps.results)
    assert n_steps >= 11
    for is_late in (False, True):
        with opened_registry(tmp_path / str(is_late), pack_bytes=SMALL_PACKS) as reg:
            job = pushed(reg)
            steps = Recorded()
            steps.is_late = is_late
            for number in range(n_steps):
                steps.dies_in = number
                with pytest.raises(Killed):
                    run_job(reg, job, steps)
            steps.dies_in = None
            run_job(reg, job, steps, threads=1)
            assert contents(reg) == whole
            assert list(fsck(reg, read_data=True)) == []


def test_what_an_abandoned_export_has_stored_is_garbage(tmp_path: Path) -> None:
    with opened_registry(tmp_path, pack_bytes=SMALL_PACKS) as reg:
        job = pushed(reg)
        steps = Recorded()
        steps.dies_in = 8  # before the file is made of the coded weights
        with pytest.raises(Killed):
            run_job(reg, job, steps)
        before = count(reg, Tensor)
        assert collect(reg).freed_bytes == 0  # the job holds what it has made
        with reg.db.write() as session:
            queue.mark_cancelled(session, job)
        age_everything(reg, days=2)
        assert collect(reg).freed_bytes > 0
        assert count(reg, Tensor) < before
        assert list(fsck(reg, read_data=True)) == []


def test_a_worker_that_is_killed_in_each_stage_ends_with_the_same_bytes(place: Place) -> None:
    place.model("f32", dtype=torch.float32)
    place.export("f32", "calm", bits="auto", budget=6)
    worker = place.hub.worker
    assert worker is not None
    running = place.ann.export_neuzip("ann/f32", "ann/killed", bits="auto", budget=6)
    seen: set[str] = set()
    deadline = time.monotonic() + 120
    while not running.refresh().is_over:
        assert time.monotonic() < deadline
        stage = str((running.job.progress or {}).get("stage", ""))
        pid = worker.pid
        if running.job.state == "running" and stage not in seen and pid and len(seen) < 4:
            seen.add(stage)
            os.kill(pid, signal.SIGKILL)
            while worker.pid in (pid, None):
                time.sleep(0.05)
        time.sleep(0.01)
    assert running.job.state == "done"
    assert seen
    folders = [place.ann.pull(name) for name in ("ann/calm", "ann/killed")]
    for name in (FILE_NAME, "neuzip.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_a_cancelled_export_leaves_nothing(place: Place) -> None:
    place.model("f32", dtype=torch.float32)
    running = place.ann.export_neuzip("ann/f32", "ann/stopped", bits="auto", budget=6)
    while running.refresh().state == "queued":
        time.sleep(0.02)
    running.cancel()
    with pytest.raises(JobFailed, match="cancelled"):
        running.wait()
    with pytest.raises(NotFound):
        place.ann.repository("ann/stopped")
    running.retry()
    assert running.wait().state == "done"

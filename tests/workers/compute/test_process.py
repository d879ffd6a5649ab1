"""The compute process: errors, limits, cancelling, and its end with its worker."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltahub.workers.compute.process import ComputeProcess
from deltahub.workers.failures import JobCancelled, StepFailed
from deltahub.workers.settings import WorkerSettings
from support.registry.opened import opened_registry

STEPS = "deltahub.workers.jobs.merge.probe"
SOURCE = """
import os, sys, time

def add(context, arguments):
    context.memo["sum"] = context.memo.get("sum", 0) + arguments["n"]
    return {"sum": context.memo["sum"], "pid": os.getpid(), "has_torch": "torch" in sys.modules}

def tell(context, arguments):
    context.log("a line")
    context.report("telling", 1, 2)
    print("this is no answer")
    return None

def hoard(context, arguments):
    return len(bytearray(arguments["n"]))

def die(context, arguments):
    os.kill(os.getpid(), 9)

def sleep(context, arguments):
    (context.folder() / "model").write_bytes(b"half of it")
    context.log("asleep")
    time.sleep(600)

def refuse(context, arguments):
    from deltahub.registry.errors import Unavailable, RevisionNotFound
    raise (Unavailable if arguments["passes"] else RevisionNotFound)("not here")

def broken(context, arguments):
    return 1 // 0
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ComputeProcess]:
    """A compute process that finds the steps above in the package of jobs."""
    (tmp_path / "steps.py").write_text(SOURCE)
    hook = tmp_path / "site"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        f"name, path = {STEPS!r}, {str(tmp_path / 'steps.py')!r}\n"
        "spec = importlib.util.spec_from_file_location(name, path)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        f"sys.modules[{STEPS!r}] = module\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hook))
    settings = WorkerSettings(compute_memory_bytes=600 << 20, compute_threads=2)
    with opened_registry(tmp_path) as reg, ComputeProcess(reg, settings, "a job") as started:
        yield started


def run(
    process: ComputeProcess, step: str, heard: list[Any] | None = None, **arguments: Any
) -> Any:
    told: list[Any] = [] if heard is None else heard
    return process.run(
        f"{STEPS}:{step}",
        arguments,
        on_progress=lambda *progress: told.append(progress),
        on_log=told.append,
        check_cancel=lambda: None,
    )


def test_steps_share_one_process_without_torch(process: ComputeProcess) -> None:
    first, second = run(process, "add", n=2), run(process, "add", n=3)
    assert (first["sum"], second["sum"]) == (2, 5)
    assert first["pid"] == second["pid"] != os.getpid()
    assert not first["has_torch"]
    heard: list[Any] = []
    run(process, "tell", heard)
    assert heard == ["a line", ("telling", 1, 2)]


def test_errors_keep_their_code_and_whether_they_pass(process: ComputeProcess) -> None:
    with pytest.raises(StepFailed, match="not here") as failure:
        run(process, "refuse", passes=False)
    assert (failure.value.code, failure.value.is_transient) == ("revision_not_found", False)
    with pytest.raises(StepFailed) as failure:
        run(process, "refuse", passes=True)
    assert (failure.value.code, failure.value.is_transient) == ("unavailable", True)
    with pytest.raises(StepFailed, match="ZeroDivisionError"):
        run(process, "broken")
    with pytest.raises(StepFailed, match="is no step"):
        process.run(
            "os:getpid", {}, on_progress=print, on_log=print, check_cancel=lambda: None
        )  # fmt: skip


def test_memory_is_limited_and_the_setting_is_named(process: ComputeProcess) -> None:
    with pytest.raises(StepFailed, match="DELTAHUB_WORKER_COMPUTE_MEMORY_BYTES"):
        run(process, "hoard", n=1 << 30)
    assert run(process, "hoard", n=1 << 20) == 1 << 20


def test_a_process_that_dies_fails_its_step_and_is_replaced(process: ComputeProcess) -> None:
    with pytest.raises(StepFailed, match="ended by signal 9"):
        run(process, "die")
    assert run(process, "add", n=1)["sum"] == 1


def test_a_cancelled_step_ends_at_once(process: ComputeProcess, tmp_path: Path) -> None:
    scratch = tmp_path / "data" / "scratch"
    run(process, "add", n=1)
    asleep: list[float] = []

    def on_log(line: str) -> None:
        assert len(list(scratch.glob("*/model"))) == 1
        asleep.append(time.monotonic())

    def check() -> None:
        if asleep:
            raise JobCancelled("cancelled")

    with pytest.raises(JobCancelled):
        process.run(
            f"{STEPS}:sleep", {}, on_progress=print, on_log=on_log, check_cancel=check
        )  # fmt: skip
    assert time.monotonic() - asleep[0] < 3
    assert list(scratch.iterdir()) == []  # nothing of what it wrote is left


WORKER = """
import sys, time
from pathlib import Path
from deltahub.registry import Registry, Settings
from deltahub.workers.compute.process import ComputeProcess
from deltahub.workers.settings import WorkerSettings

with Registry.open(Settings(data_dir=Path(sys.argv[1]))) as reg:
    process = ComputeProcess(reg, WorkerSettings(), "a job")
    nothing = lambda *_: None
    made = process.run(
        sys.argv[2], {"n": 1}, on_progress=nothing, on_log=nothing, check_cancel=nothing
    )
    print(made["pid"], flush=True)
    time.sleep(600)
"""


def test_the_process_ends_with_its_worker(process: ComputeProcess, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path / "data"), f"{STEPS}:add"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        os.kill(pid, 0)
        worker.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)

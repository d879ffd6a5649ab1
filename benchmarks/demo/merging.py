"""Merges the demonstration's fine-tunes, and loads each task with a stock client."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hub import EmbeddedHub, HubFailed, run_json
from benchmarks.results_file import print_columns

AGREEMENT = Path(__file__).parent / "agreement.py"


@dataclass(frozen=True)
class Task:
    """A fine-tune and its branch of the merge."""

    branch: str
    folder: Path
    fine_tune_bytes: int
    branch_bytes: int
    relative_error: float
    agreement: float  # of the branch with the fine-tune
    unified_agreement: float  # of the unified model alone


@dataclass(frozen=True)
class Merge:
    seconds: float
    fine_tunes_bytes: int
    main_bytes: int
    branches_bytes: int
    tasks: list[Task]


def merge(
    hub: EmbeddedHub, base: str, fine_tunes: dict[str, Path], name: str, scratch: Path
) -> Merge:
    """fine_tunes: repository -> folder of its model. name: the new repository."""
    began = time.monotonic()
    command = ["merge", "emr", "--base", base, *fine_tunes, "--name", name]
    job = run_json(command, hub.client_environment(scratch / "cache of the merger"))
    seconds = time.monotonic() - began
    report = job["result"]["report"]
    tasks = []
    for task, folder in zip(report["tasks"], fine_tunes.values(), strict=True):
        shares = _agreement(hub, folder, name, [task["branch"], "main"], scratch / "stock cache")
        tasks.append(
            Task(
                task["branch"],
                folder,
                task["fine_tune_bytes"],
                task["branch_bytes"],
                task["relative_error"],
                shares[task["branch"]],
                shares["main"],
            )
        )
    sizes = (report["fine_tunes_bytes"], report["main_bytes"], report["branches_bytes"])
    return Merge(seconds, *sizes, tasks)


def _agreement(
    hub: EmbeddedHub, folder: Path, name: str, revisions: list[str], cache: Path
) -> dict[str, Any]:
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": hub.token,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    for offline in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        environment.pop(offline, None)
    command = [sys.executable, str(AGREEMENT), str(folder), name, *revisions]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise HubFailed(f"transformers could not load {name}: {run.stderr[-2000:]}")
    shares: dict[str, Any] = json.loads(run.stdout)
    return shares


def print_merge(merged: Merge) -> None:
    def size(n: int) -> str:
        return f"{n / 1e6:.2f}"

    titles = ["task", "fine-tune", "mask", "rel. error", "same token", "unified alone"]
    lines = [
        [
            task.branch,
            size(task.fine_tune_bytes),
            size(task.branch_bytes),
            f"{task.relative_error:.3f}",
            f"{task.agreement:.1%}",
            f"{task.unified_agreement:.1%}",
        ]
        for task in merged.tasks
    ]
    total = merged.main_bytes + merged.branches_bytes
    print(
        f"\n`deltahub merge emr` made one repository of {len(merged.tasks)} fine-tunes in"
        f" {merged.seconds:.1f} s. Each task is a branch, which\ntransformers loaded by itself;"
        " `same token`: how often it and the fine-tune predict the same next one.\n"
    )
    print_columns(titles, lines)
    print(
        f"\nthe fine-tunes take {size(merged.fine_tunes_bytes)} MB as lossless deltas; the merge"
        f" {size(total)} MB: {size(merged.main_bytes)} MB for the unified model,\n"
        f"{size(merged.branches_bytes)} MB for the masks",
        flush=True,
    )

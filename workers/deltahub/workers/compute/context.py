"""What a step may use that runs in a compute process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.registry import Registry


@dataclass(frozen=True)
class ComputeContext:
    """report(stage, done, total): progress of the step, in any unit. log(text): a line of the job's
    log. worker_device: of the worker's settings. memo: values that later steps in the same process
    may use again; any may be missing.
    """

    registry: Registry
    reader: FileReader
    job_id: str
    threads: int
    report: Callable[[str, int, int], None]
    log: Callable[[str], None]
    worker_device: str = "auto"
    memo: dict[str, Any] = field(default_factory=dict)

    def device(self, asked: str) -> str:
        """Where models run: the worker's device, unless the job insists on the CPU.

        A GPU has another number on each machine, so that `cuda:N` only says which jobs need one.
        """
        return asked if asked == "cpu" or self.worker_device == "auto" else self.worker_device

    def folder(self) -> Path:
        """A folder for files of the step, which is deleted when the process ends at the latest."""
        path = self.registry.job_folder(self.job_id)
        path.mkdir(exist_ok=True)
        return path


Step = Callable[[ComputeContext, dict[str, Any]], Any]
"""step(context, arguments): both arguments and result are plain JSON. A step that was interrupted
runs again, so it must be idempotent.
"""

"""The data folder as a place: whether a hub lies in it, and who has it to themselves.

The locks are advisory, on open files: the system drops them when their holder dies, however.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType

from deltahub.registry.settings import Settings

# Held by `deltahub serve` and by the worker as long as they live.
SERVE_LOCK = "serve.lock"
WORKER_LOCK = "worker.lock"
# Of every command that needs the data folder, or its jobs, to itself.
EXIT_BUSY = 3


class NoHub(Exception):
    """There is no hub where the operator looked for one."""

    code = "no_hub"


class DataFolderBusy(Exception):
    """Another process holds a lock of the data folder. holder: its process id, as text."""

    code = "data_folder_busy"

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"process {holder} holds {path}")
        self.folder = path.parent
        self.holder = holder


class DataFolderLock:
    """One of the locks of a data folder that exists, held while the context is open."""

    def __init__(self, data_dir: Path, name: str) -> None:
        self._path = data_dir / name
        self._descriptor: int | None = None

    def __enter__(self) -> "DataFolderLock":
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _lock(descriptor, self._path, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def check_free(data_dir: Path, name: str) -> None:
    """DataFolderBusy while another process holds this lock. Makes nothing."""
    path = data_dir.resolve() / name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    _lock(descriptor, path, fcntl.LOCK_SH)
    os.close(descriptor)


def require_hub(settings: Settings) -> None:
    """NoHub when no hub was ever made in the data folder: a mistyped name must not make one."""
    folder = settings.data_dir.resolve()
    marks = [folder / "objects"]
    if settings.database_url is None:
        marks.append(folder / "deltahub.sqlite3")
    if not all(mark.exists() for mark in marks):
        raise NoHub(
            f"there is no hub in the data folder {folder}: name the right one with --data-dir or "
            "DELTAHUB_DATA_DIR, or make one there with `deltahub serve`"
        )


def _lock(descriptor: int, path: Path, how: int) -> None:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise DataFolderBusy(path, holder) from exc

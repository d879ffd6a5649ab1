"""The data folder: whether it holds a hub, and which process has locked it.

The locks are advisory locks (flock) on open files. The kernel releases a lock when its holder dies.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType

from deltahub.registry.db.opening.moved import refuse_moved
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import StoreError
from deltahub.registry.storage.local import translated

# `deltahub serve` and the worker hold these while they run. A `deltahub gc` that needs both stopped
# holds them too, and so do `deltahub restore` and `deltahub db move`.
SERVE_LOCK = "serve.lock"
WORKER_LOCK = "worker.lock"
# The one running `deltahub recompress --apply` holds this, and so does such a gc.
RECOMPRESS_LOCK = "recompress.lock"
# The one running `deltahub store copy` holds this.
MOVE_LOCK = "move.lock"
# Exit status of a command that needs a lock of the data folder which another process holds.
EXIT_BUSY = 3
SERVE = "deltahub serve"
WORKER = "deltahub worker"
GC = "deltahub gc"
RECOMPRESS = "deltahub recompress"
STORE_COPY = "deltahub store copy"
RESTORE = "deltahub restore"
DATABASE_MOVE = "deltahub db move"


class NoHub(Exception):
    """The data folder that the operator named holds no hub."""

    code = "no_hub"


class DataFolderBusy(Exception):
    """Another process holds a lock of the hub.

    lock: the lock's file, or its name where locks are rows of the database. place: text for
    messages, what the holder has locked. process: the holder's id, and its host if that is known.
    command: its command, such as `deltahub gc`; "" if the lock does not name it. holder: text for
    messages, with the process and the command.
    """

    code = "data_folder_busy"

    def __init__(self, lock: Path | str, place: str, process: str, command: str) -> None:
        self.place = place
        self.command = command
        self.holder = f"process {process}, `{command}`" if command else f"process {process}"
        super().__init__(f"{lock} is held ({self.holder})")


class DataFolderLock:
    """A lock of an existing data folder, held while the context is open.

    DataFolderBusy if another process holds it; StoreError if its file cannot be written.

    command: the holder's command, which DataFolderBusy shows to other processes.
    """

    def __init__(self, data_dir: Path, name: str, command: str) -> None:
        self._path = data_dir / name
        self._command = command
        self._descriptor: int | None = None

    def __enter__(self) -> "DataFolderLock":
        while True:
            with translated(str(self._path)):
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _lock(descriptor, self._path, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)  # its holder has deleted it, so it keeps nobody out
        try:
            with translated(str(self._path)):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} {self._command}\n".encode(), 0)
        except StoreError:
            os.close(descriptor)
            raise
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
    """DataFolderBusy while another process holds this lock. Creates no file."""
    path = data_dir.resolve() / name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    _lock(descriptor, path, fcntl.LOCK_SH)
    os.close(descriptor)


def require_hub(settings: Settings) -> None:
    """NoHub if the data folder holds no hub. A mistyped folder name must not create a hub.

    Unavailable if the hub was moved to PostgreSQL, and the settings name the old database.
    """
    refuse_moved(settings.effective_database_url)
    folder = settings.data_dir.resolve()
    # The folder `objects` may be deleted once the objects lie in a bucket.
    mark = folder / ("spool" if settings.database_url is not None else "deltahub.sqlite3")
    if not mark.exists():
        raise NoHub(
            f"there is no hub in the data folder {folder}: name the right one with --data-dir or "
            "DELTAHUB_DATA_DIR, or make one there with `deltahub serve`"
        )


def _lock(descriptor: int, path: Path, how: int) -> None:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        pid, _, command = os.pread(descriptor, 80, 0).decode("ascii", "replace").partition(" ")
        os.close(descriptor)
        place = f"the data folder {path.parent}"
        raise DataFolderBusy(path, place, pid.strip() or "unknown", command.strip()) from exc

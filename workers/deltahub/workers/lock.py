"""One worker a data folder: an advisory lock that the system drops when its holder dies."""

import fcntl
import os
from pathlib import Path
from types import TracebackType

LOCK_NAME = "worker.lock"


class DataFolderBusy(Exception):
    """Another worker holds the data folder."""

    code = "data_folder_busy"


class DataFolderLock:
    """The right to run jobs on a data folder, held while the context is open."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / LOCK_NAME
        self._descriptor: int | None = None

    def __enter__(self) -> "DataFolderLock":
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise DataFolderBusy(
                f"{self._path.parent} already has a worker (process {holder}); "
                "stop it, or `deltahub serve` that started it, before starting another"
            ) from exc
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

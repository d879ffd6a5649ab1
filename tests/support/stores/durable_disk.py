"""A disk that loses, on crash(), everything that was not fsynced before.

It works on real files. Beside them it keeps what a file system must still have after a loss of
power: of each file the contents at its last fsync, of each folder the names at its last fsync.
crash() puts exactly that back: the worst that the rules of POSIX allow.
"""

import errno
import itertools
import os
import shutil
import threading
from pathlib import Path

from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.disk import Disk


class DurableDisk(Disk):
    """Everything below `root` at the time of construction is durable.

    Files made without this disk are left as they are: the database and its lock, which are
    durable by themselves. Durable contents are kept in memory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._numbers = itertools.count()
        self._nodes: dict[tuple[int, int], int] = {}  # (device, inode) -> our own number
        self._files: dict[int, bytes] = {}  # durable contents
        self._folders: dict[int, dict[str, int]] = {}  # durable names
        self._open: dict[int, int] = {}  # descriptor -> file number
        self._lock = threading.RLock()
        self.n_fsyncs = 0
        if not self.root.exists():
            self.root.mkdir(parents=True)
        self._adopt(self.root)

    def open(self, path: Path, flags: int) -> int:
        with self._lock:
            is_new = not path.exists()
            fd = super().open(path, flags)
            stat = os.fstat(fd)
            if is_new:
                # An inode's number may be reused after its last name is gone.
                self._nodes[stat.st_dev, stat.st_ino] = number = next(self._numbers)
                self._files[number] = b""
            self._open[fd] = self._nodes[stat.st_dev, stat.st_ino]
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._open.pop(fd, None)
            super().close(fd)

    def fsync(self, fd: int) -> None:
        with self._lock:
            self.n_fsyncs += 1
            self._check_power(fd)
            super().fsync(fd)
            size = os.fstat(fd).st_size
            reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
            try:
                self._files[self._open[fd]] = _read(reader, size)
            finally:
                os.close(reader)

    def mkdir(self, path: Path) -> None:
        with self._lock:
            super().mkdir(path)
            stat = path.stat()
            self._nodes[stat.st_dev, stat.st_ino] = number = next(self._numbers)
            self._folders[number] = {}

    def write(self, fd: int, data: Buffer) -> None:
        self._check_power(fd)
        super().write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        self._check_power(fd)
        super().truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._lock:
            super().unlink(path)

    def fsync_dir(self, path: Path) -> None:
        with self._lock:
            self.n_fsyncs += 1
            super().fsync_dir(path)
            number = self._number(path)
            if number is not None:
                self._folders[number] = self._names(path)

    def crash(self) -> None:
        """Lose the power: only durable files and names remain. Reopen everything afterwards."""
        with self._lock:
            self._open.clear()
            self._restore(self.root, self._folders[self._known(self.root)])
            self._nodes.clear()
            self._files.clear()
            self._folders.clear()
            self._adopt(self.root)

    def copy_durable(self, target: Path) -> None:
        """Copy what a loss of power would leave now into a new folder."""
        with self._lock:
            self._copy(self._known(self.root), target)

    def _copy(self, number: int, target: Path) -> None:
        target.mkdir()
        for name, child in self._folders[number].items():
            if child in self._folders:
                self._copy(child, target / name)
            else:
                (target / name).write_bytes(self._files[child])

    def _check_power(self, fd: int) -> None:
        if fd not in self._open:
            raise OSError(errno.EIO, "this file was opened before the power was lost")

    def _adopt(self, folder: Path) -> None:
        stat = folder.stat()
        self._nodes[stat.st_dev, stat.st_ino] = number = next(self._numbers)
        for path in folder.iterdir():
            if path.is_dir():
                self._adopt(path)
            elif not _looks_after_itself(path):
                stat = path.stat()
                file_number = self._nodes.setdefault(
                    (stat.st_dev, stat.st_ino), next(self._numbers)
                )
                self._files[file_number] = path.read_bytes()
        self._folders[number] = self._names(folder)

    def _names(self, folder: Path) -> dict[str, int]:
        numbered = ((path.name, self._number(path)) for path in folder.iterdir())
        return {name: number for name, number in numbered if number is not None}

    def _number(self, path: Path) -> int | None:
        if _looks_after_itself(path):
            return None
        stat = path.stat()
        return self._nodes.get((stat.st_dev, stat.st_ino))

    def _known(self, path: Path) -> int:
        number = self._number(path)
        assert number is not None, path
        return number

    def _restore(self, folder: Path, names: dict[str, int]) -> None:
        for path in list(folder.iterdir()):
            if self._number(path) is None:
                continue
            if path.is_dir() and names.get(path.name) == self._number(path):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, number in names.items():
            path = folder / name
            if number in self._folders:
                path.mkdir(exist_ok=True)
                self._restore(path, self._folders[number])
            else:
                path.write_bytes(self._files[number])


def _looks_after_itself(path: Path) -> bool:
    return ".sqlite" in path.name or path.suffix == ".lock"


def _read(fd: int, size: int) -> bytes:
    data = bytearray(size)
    view, position = memoryview(data), 0
    while position < size:
        position += os.preadv(fd, [view[position:]], position)
    return bytes(data)

"""All calls that change the file system, and its free space, in an object that a test can replace.

Reads do not use it: they see all visible bytes, and only this object knows which are durable.
"""

import io
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltahub.registry.storage.base import Buffer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BUFFER_BYTES: Final = 1 << 20


class Disk:
    """The file system. Errors are OSError; callers translate them."""

    def open(self, path: Path, flags: int) -> int:
        """A file descriptor; `flags` as for os.open."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: Buffer) -> None:
        """Write all of data at the descriptor's position."""
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(fd, view) :]

    def write_at(self, fd: int, data: Buffer, offset: int) -> None:
        """Write all of data at this offset of the file."""
        view = memoryview(data).cast("B")
        while view:
            n = os.pwrite(fd, view, offset)
            view, offset = view[n:], offset + n

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def mkdir(self, path: Path) -> None:
        os.mkdir(path, 0o700)

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces the target."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def free_bytes(self, path: Path) -> int:
        """Bytes that this process may still write to the file system of the path."""
        return shutil.disk_usage(path).free

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class _Descriptor(io.RawIOBase):
    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self._fd = fd

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: "ReadableBuffer", /) -> int:
        view = memoryview(data)
        self._disk.write(self._fd, view)
        return view.nbytes

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._disk.close(self._fd)


def new_file(disk: Disk, path: Path) -> io.BufferedWriter:
    """Create a file for sequential writes; FileExistsError. It is durable after make_durable()."""
    fd = disk.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    return io.BufferedWriter(_Descriptor(disk, fd), _BUFFER_BYTES)


def make_durable(disk: Disk, file: io.BufferedWriter) -> None:
    """Flush and fsync the file, so that its bytes survive a loss of power. Its name may not."""
    file.flush()
    disk.fsync(file.fileno())


class Folders:
    """Remembers which folders below a root survive a loss of power.

    Another process may have made a folder and not fsynced its parent yet. So this process fsyncs
    the parent of every folder once, too.
    """

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._durable: set[Path] = set()

    def ensure(self, folder: Path) -> None:
        """Make the folder and its parents up to the root, and make them durable."""
        if folder in self._durable:
            return
        if folder != self._root:
            self.ensure(folder.parent)
        try:
            self._disk.mkdir(folder)
        except FileExistsError:
            if not folder.is_dir():
                raise
        self._disk.fsync_dir(folder.parent)
        self._durable.add(folder)

"""A disk that gets full."""

import errno
import os
from pathlib import Path

from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.disk import Disk


class SmallDisk(Disk):
    """`room` bytes can be written; `free` is what the disk says, None for the same."""

    def __init__(self, room: int = 1 << 40, free: int | None = None) -> None:
        self.room = room
        self.free = free

    def free_bytes(self, path: Path) -> int:
        return self.room if self.free is None else self.free

    def write(self, fd: int, data: Buffer) -> None:
        self._take(data)
        super().write(fd, data)

    def write_at(self, fd: int, data: Buffer, offset: int) -> None:
        self._take(data)
        super().write_at(fd, data, offset)

    def _take(self, data: Buffer) -> None:
        n_bytes = memoryview(data).nbytes
        if n_bytes > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= n_bytes

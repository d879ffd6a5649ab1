"""A part of an upload while it fills."""

import os
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.checksums import Hashes
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated

_READ_BYTES: Final = 1 << 20


class PartFile:
    """Bytes in a scratch file without a name, which ends with the process.

    A client may take an hour for a part. In memory, the parts of all clients would take gigabytes,
    or slow clients would keep others from theirs.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.size = 0
        self.crc32 = 0
        self._disk = disk
        path = folder / f"part-{secrets.token_hex(8)}"
        with translated(path.name):
            self.fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            disk.unlink(path)

    def append(self, data: Buffer) -> None:
        """StoreFull, which leaves it as it was."""
        with translated("part of an upload"):
            self._disk.write_at(self.fd, data, self.size)
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size += memoryview(data).nbytes

    def pieces(self) -> Iterator[bytes]:
        for start in range(0, self.size, _READ_BYTES):
            with translated("part of an upload"):
                yield os.pread(self.fd, min(_READ_BYTES, self.size - start), start)

    def hashes(self) -> Hashes:
        found = Hashes(self.size)
        for piece in self.pieces():
            found.update(piece)
        return found

    def close(self) -> None:
        if self.fd >= 0:
            self._disk.close(self.fd)
        self.fd = -1

"""Bodies of requests: their checksums, the memory they may take, and the pieces of a file."""

import base64
import hashlib
import io
import os
import re
import threading
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from deltahub.registry import cancellation
from deltahub.registry.storage.base import Buffer, SentPart

PART_BYTES: Final = 16 << 20
MOST_PARTS: Final = 10_000
# Largest part, and largest object of one request.
MOST_PART_BYTES: Final = 5 << 30
# Bytes that a stream may hold without counting in PartMemory.
SMALL_BYTES: Final = 256 << 10
_READ_BYTES: Final = 1 << 20
_LOOK_S: Final = 0.5
_MD5: Final = re.compile(r"[0-9a-f]{32}")


class PartMemory:
    """The memory for parts of streams: as many parts as are sent at once, and one that is filled.

    All uploads of a store share it, so that many uploads at once take no more than one does.
    """

    def __init__(self, n_parts: int) -> None:
        self._free = threading.Semaphore(n_parts)

    def take(self) -> None:
        """Wait for the memory of one part; Cancelled if the caller leaves.

        The caller holds no part meanwhile that only itself can send, so that none waits forever.
        """
        while not self._free.acquire(timeout=_LOOK_S):
            cancellation.check()

    def give_back(self) -> None:
        self._free.release()


class FilePart(io.RawIOBase):
    """Bytes of a file as the body of a request, read when they are sent, and again at a retry."""

    def __init__(self, fd: int, start: int, size: int) -> None:
        super().__init__()
        self._fd, self._start, self._size = fd, start, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """At most `size` bytes, but no less than a mebibyte, unless the part ends.

        The HTTP client asks for 16 KiB and takes what comes. So small pieces would cost it more
        than all else that it does.
        """
        left = max(0, self._size - self._position)
        n = left if size is None or size < 0 else min(left, max(size, _READ_BYTES))
        data = os.pread(self._fd, n, self._start + self._position)
        self._position += len(data)
        return data

    def __len__(self) -> int:
        return self._size


def pieces_of(body: Buffer | FilePart) -> Iterator[Buffer]:
    """All bytes of a body, which is at its beginning before and after."""
    if isinstance(body, FilePart):
        body.seek(0)
        while piece := body.read(_READ_BYTES):
            yield piece
        body.seek(0)
    else:
        yield body


def crc32_of(body: Buffer | FilePart) -> str:
    """The CRC32 as S3 writes it."""
    crc = 0
    for piece in pieces_of(body):
        crc = zlib.crc32(piece, crc)
    return _base64(crc.to_bytes(4, "big"))


def md5_of(body: Buffer | FilePart) -> bytes:
    """The MD5, which is no more than a checksum here."""
    md5 = hashlib.md5(usedforsecurity=False)
    for piece in pieces_of(body):
        md5.update(piece)
    return md5.digest()


def content_md5(digest: bytes) -> str:
    """An MD5 as the header Content-MD5 has it."""
    return _base64(digest)


def crc32_of_parts(parts: Sequence[SentPart]) -> str:
    """What S3 gives back as the CRC32 of an object of these parts: the CRC32 of their CRC32s."""
    whole = b"".join(base64.b64decode(part.crc32) for part in parts)
    return f"{_base64(zlib.crc32(whole).to_bytes(4, 'big'))}-{len(parts)}"


def etag_of_parts(parts: Sequence[SentPart]) -> str | None:
    """The ETag of an object of these parts; None if the parts' own are no MD5."""
    tags = [part.etag.strip('"') for part in parts]
    if not all(_MD5.fullmatch(tag) for tag in tags):
        return None
    whole = hashlib.md5(bytes.fromhex("".join(tags)), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(parts)}"


@dataclass
class StreamPart:
    """A part of a stream in memory. Whoever has sent it gives its memory back, once."""

    data: bytearray
    memory: PartMemory | None = None

    def release(self) -> None:
        if self.memory is not None:
            self.memory.give_back()
        self.memory = None
        self.data = bytearray()


def parts_of(chunks: Iterable[Buffer], memory: PartMemory) -> Generator[StreamPart, None, None]:
    """The parts of a stream, all of PART_BYTES but the last. Memory is taken once it grows."""
    part = StreamPart(bytearray())
    try:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            while view:
                n = min(view.nbytes, PART_BYTES - len(part.data))
                if len(part.data) + n > SMALL_BYTES and part.memory is None:
                    memory.take()
                    part.memory = memory
                part.data += view[:n]
                view = view[n:]
                if len(part.data) == PART_BYTES:
                    full, part = part, StreamPart(bytearray())
                    yield full
        if part.data:
            last, part = part, StreamPart(bytearray())
            yield last
    finally:
        part.release()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()

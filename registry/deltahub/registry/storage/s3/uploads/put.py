"""Writes objects: small ones by one request, large ones by parts that are sent side by side."""

from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path

from deltahub.registry import cancellation
from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.s3.connection import Connection
from deltahub.registry.storage.s3.errors import BucketUnavailable
from deltahub.registry.storage.s3.uploads.bodies import Body, send_body
from deltahub.registry.storage.s3.uploads.multipart import Multipart
from deltahub.registry.storage.s3.uploads.parts import (
    MOST_PARTS,
    PART_BYTES,
    FilePart,
    PartMemory,
    StreamPart,
    parts_of,
)


def put_whole(connection: Connection, key: str, data: Body) -> None:
    """Write an object by one request."""
    send_body(
        connection,
        key,
        "put_object",
        data,
        cancellation.check,
        Key=connection.key(key),
        **connection.encryption,
    )


def put_chunks(
    connection: Connection,
    pool: Executor,
    memory: PartMemory,
    key: str,
    chunks: Iterable[Buffer],
) -> None:
    """Write an object of bytes that come piece by piece, MOST_PARTS parts at most."""
    with closing(parts_of(chunks, memory)) as parts:
        first = next(parts, StreamPart(bytearray()))
        if len(first.data) < PART_BYTES:
            try:
                put_whole(connection, key, first.data)
            finally:
                first.release()
            return
        try:
            with Multipart(connection, pool, key) as upload:
                upload.add(first.data, len(first.data), first.release)
                for n, part in enumerate(parts, 2):
                    if n > MOST_PARTS:
                        part.release()
                        most = MOST_PARTS * PART_BYTES
                        raise BucketUnavailable(f"{key}: a stream may have {most} bytes, not more")
                    upload.add(part.data, len(part.data), part.release)
        finally:
            first.release()  # the upload may have failed before it took the part


def put_file(connection: Connection, pool: Executor, key: str, path: Path) -> None:
    """Write an object of a file's bytes, which are read as they are sent. Memory: none of note."""
    with translated(str(path)), path.open("rb") as file:
        size = path.stat().st_size
        fd = file.fileno()
        if size <= PART_BYTES:
            put_whole(connection, key, FilePart(fd, 0, size))
            return
        part_bytes = part_bytes_of(size)
        with Multipart(connection, pool, key) as upload:
            for start in range(0, size, part_bytes):
                n = min(part_bytes, size - start)
                upload.add(FilePart(fd, start, n), n)


def part_bytes_of(size: int) -> int:
    """The size of a file's parts, so that there are MOST_PARTS at most."""
    return max(PART_BYTES, -(-size // MOST_PARTS))

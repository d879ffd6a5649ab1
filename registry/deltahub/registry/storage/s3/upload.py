"""Writes objects: small ones by one request, large ones by parts that are sent side by side."""

import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from deltahub.registry.storage.base import Buffer, StoreError
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.s3.connection import Connection

PART_BYTES: Final = 16 << 20
_MOST_PARTS: Final = 10_000


def put_chunks(connection: Connection, pool: Executor, key: str, chunks: Iterable[Buffer]) -> None:
    """Write an object of bytes that come piece by piece. Memory: two parts."""
    parts = _parts_of(chunks)
    first = next(parts, b"")
    second = next(parts, None)
    if second is None:
        _put_whole(connection, key, first)
        return
    upload = _Multipart(connection, pool, key)
    with upload:
        for part in _chain(first, second, parts):
            upload.add(partial(bytes, part))
            upload.wait(1)


def put_file(connection: Connection, pool: Executor, key: str, path: Path) -> None:
    """Write an object of a file's bytes. Memory: one part a thread of the pool."""
    with translated(str(path)):
        size = path.stat().st_size
        if size <= PART_BYTES:
            _put_whole(connection, key, path.read_bytes())
            return
    n_part = max(PART_BYTES, -(-size // _MOST_PARTS))
    with (
        _Multipart(connection, pool, key) as upload,
        translated(str(path)),
        path.open("rb") as file,
    ):
        for start in range(0, size, n_part):
            n = min(n_part, size - start)
            upload.add(partial(os.pread, file.fileno(), n, start))
        upload.wait(0)


def _put_whole(connection: Connection, key: str, data: Buffer) -> None:
    with connection.errors(key):
        connection.client.put_object(
            Bucket=connection.location.bucket,
            Key=connection.key(key),
            Body=bytes(data),
            **connection.put_options,
        )


class _Multipart:
    """A multipart upload: completed at the end of the context, aborted after an error."""

    def __init__(self, connection: Connection, pool: Executor, key: str) -> None:
        self._connection = connection
        self._pool = pool
        self._key = key
        self._target = {"Bucket": connection.location.bucket, "Key": connection.key(key)}
        self._parts: list[Future[dict[str, Any]]] = []

    def __enter__(self) -> "_Multipart":
        with self._connection.errors(self._key):
            answer = self._connection.client.create_multipart_upload(
                **self._target, ChecksumAlgorithm="CRC32", **self._connection.put_options
            )
        self._target["UploadId"] = answer["UploadId"]
        return self

    def add(self, read: Callable[[], Buffer]) -> None:
        """Send a part, whose bytes are read when its turn comes."""
        self._parts.append(self._pool.submit(self._send, len(self._parts) + 1, read))

    def wait(self, left: int) -> None:
        """Wait until at most so many parts are still being sent."""
        for part in self._parts[: len(self._parts) - left]:
            part.result()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        client = self._connection.client
        try:
            if kind is not None:
                return
            parts = [part.result() for part in self._parts]
            with self._connection.errors(self._key):
                client.complete_multipart_upload(
                    **self._target,
                    MultipartUpload={"Parts": parts},
                    **self._connection.get_options,
                )
            self._parts = []
        finally:
            if self._parts:
                self._abort()

    def _send(self, number: int, read: Callable[[], Buffer]) -> dict[str, Any]:
        data = read()
        with self._connection.errors(self._key):
            answer = self._connection.client.upload_part(
                **self._target,
                PartNumber=number,
                Body=io.BytesIO(data),
                ChecksumAlgorithm="CRC32",
                **self._connection.get_options,
            )
        part = {"PartNumber": number, "ETag": answer["ETag"]}
        if "ChecksumCRC32" in answer:
            part["ChecksumCRC32"] = answer["ChecksumCRC32"]
        return part

    def _abort(self) -> None:
        for part in self._parts:
            part.cancel()
        for part in self._parts:
            with suppress(Exception):
                part.result()
        with suppress(StoreError), self._connection.errors(self._key):
            self._connection.client.abort_multipart_upload(
                **self._target, **self._connection.get_options
            )


def _parts_of(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    part = bytearray()
    for chunk in chunks:
        part += chunk
        while len(part) >= PART_BYTES:
            yield bytes(part[:PART_BYTES])
            del part[:PART_BYTES]
    if part:
        yield bytes(part)


def _chain(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest

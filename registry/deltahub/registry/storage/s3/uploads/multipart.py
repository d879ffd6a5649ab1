"""A multipart upload: its parts are sent side by side, and it becomes an object at its end."""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from deltahub.registry import cancellation
from deltahub.registry.storage.base import StoreError
from deltahub.registry.storage.s3.connection import Connection
from deltahub.registry.storage.s3.errors import (
    REQUEST_ERRORS,
    BucketUnavailable,
    code_of,
    is_absent,
)
from deltahub.registry.storage.s3.uploads.bodies import Body, send_body
from deltahub.registry.storage.s3.uploads.parts import crc32_of_parts, etag_of_parts

# How often the sender looks whether its caller has left.
_LOOK_S: Final = 0.5


class _Stopped(Exception):
    """The upload failed or was cancelled, so its other parts need not be sent."""


class Multipart:
    """An upload in parts: completed and proved at the end of the context, aborted after an error.

    A reader sees the object after that, or what was there before.
    """

    def __init__(self, connection: Connection, pool: Executor, key: str) -> None:
        self._connection = connection
        self._pool = pool
        self._key = key
        self._target = {"Key": connection.key(key)}
        self._sent: list[Future[dict[str, Any]]] = []
        self._running: set[Future[dict[str, Any]]] = set()
        self._most_running = 2 * connection.settings.s3_parallel
        self._stopped = threading.Event()
        self._size = 0

    def __enter__(self) -> Self:
        answer = self._connection.call(
            self._key,
            "create_multipart_upload",
            **self._target,
            ChecksumAlgorithm="CRC32",
            **self._connection.encryption,
        )
        self._target["UploadId"] = answer["UploadId"]
        return self

    def add(self, body: Body, size: int, sent: Callable[[], None] = lambda: None) -> None:
        """Send a part. `sent` is called once it was sent, or will not be.

        The first error of an earlier part is raised here. Waits while many parts are being sent.
        """
        self._size += size
        try:
            future = self._pool.submit(self._send, len(self._sent) + 1, body)
        except BaseException:
            sent()
            raise
        future.add_done_callback(lambda _: sent())
        self._sent.append(future)
        self._running.add(future)
        self._wait(self._most_running)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        is_complete = False
        try:
            if kind is None:
                self._wait(0)
                self._complete([part.result() for part in self._sent])
                is_complete = True
        finally:
            if not is_complete:
                self._abort()

    def _wait(self, n_left: int) -> None:
        while len(self._running) > n_left:
            done, self._running = wait(self._running, _LOOK_S, FIRST_COMPLETED)
            for part in done:
                part.result()
            cancellation.check()

    def _send(self, number: int, body: Body) -> dict[str, Any]:
        answer = send_body(
            self._connection,
            self._key,
            "upload_part",
            body,
            self._check,
            **self._target,
            PartNumber=number,
        )
        etag, crc32 = answer["ETag"], answer["ChecksumCRC32"]
        return {"PartNumber": number, "ETag": etag, "ChecksumCRC32": crc32}

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _Stopped

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        connection = self._connection
        try:
            connection.request(
                "complete_multipart_upload", **self._target, MultipartUpload={"Parts": parts}
            )
        except REQUEST_ERRORS as exc:
            # An earlier attempt may have succeeded, although its answer was lost.
            if code_of(exc) != "NoSuchUpload" or not self._was_completed(parts):
                raise connection.error(self._key, exc) from exc
        else:
            self._prove(parts)

    def _prove(self, parts: list[dict[str, Any]]) -> None:
        """StoreUnavailable unless the object is there with its size and its checksum."""
        head = self._head()
        if head is None:
            raise BucketUnavailable(f"{self._key}: the service completed it, and does not have it")
        if head["ContentLength"] != self._size:
            size = head["ContentLength"]
            text = f"{self._key}: {self._size} bytes were sent, and the service has {size}"
            raise BucketUnavailable(text)
        expected, found = crc32_of_parts(parts), head.get("ChecksumCRC32", "")
        if "-" in found and found != expected:
            text = f"{self._key}: the service has CRC32 {found}; {expected} was sent"
            raise BucketUnavailable(text)

    def _was_completed(self, parts: list[dict[str, Any]]) -> bool:
        """Whether the object under the key is this upload, not an older one of the same size."""
        head = self._head()
        if head is None or head["ContentLength"] != self._size:
            return False
        return head.get("ChecksumCRC32") == crc32_of_parts(parts) or etag_of_parts(parts) == str(
            head["ETag"]
        ).strip('"')

    def _head(self) -> dict[str, Any] | None:
        connection = self._connection
        try:
            return dict(
                connection.request(
                    "head_object", Key=connection.key(self._key), ChecksumMode="ENABLED"
                )
            )
        except REQUEST_ERRORS as exc:
            if is_absent(exc):
                return None
            raise connection.error(self._key, exc) from exc

    def _abort(self) -> None:
        """End the upload. What a failure leaves here is found by `deltahub gc`."""
        self._stopped.set()
        for part in self._sent:
            part.cancel()
        wait(self._sent)
        once = partial(self._connection.client.abort_multipart_upload, **self._target)
        with suppress(StoreError, *REQUEST_ERRORS):
            once(Bucket=self._connection.location.bucket, **self._connection.owner)

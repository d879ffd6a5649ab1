"""Puts an object in parts: they are sent side by side, and become the object at the end."""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from typing import Final, Self

from deltahub.registry import cancellation
from deltahub.registry.storage.base import PartsLost, SentPart, StoreError
from deltahub.registry.storage.s3.connection import Connection
from deltahub.registry.storage.s3.errors import REQUEST_ERRORS
from deltahub.registry.storage.s3.uploads.bodies import Body
from deltahub.registry.storage.s3.uploads.part_requests import PartRequests

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
        self._requests = PartRequests(connection)
        self._pool = pool
        self._key = key
        self._upload_id = ""
        self._sent: list[Future[SentPart]] = []
        self._running: set[Future[SentPart]] = set()
        self._most_running = 2 * connection.settings.s3_parallel
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        self._upload_id = self._requests.begin(self._key)
        return self

    def add(self, body: Body, size: int, sent: Callable[[], None] = lambda: None) -> None:
        """Send a part. `sent` is called once it was sent, or will not be.

        The first error of an earlier part is raised here. Waits while many parts are being sent.
        """
        try:
            future = self._pool.submit(self._send, len(self._sent) + 1, body, size)
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

    def _send(self, number: int, body: Body, size: int) -> SentPart:
        return self._requests.send_body(self._key, self._upload_id, number, body, size, self._check)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _Stopped

    def _complete(self, parts: list[SentPart]) -> None:
        try:
            self._requests.complete(self._key, self._upload_id, parts)
        except PartsLost:
            # An earlier attempt may have succeeded, although its answer was lost. An older object
            # of the same size does not count.
            if not self._requests.is_there(self._key, parts):
                raise

    def _abort(self) -> None:
        """End the upload. What a failure leaves here is found by `deltahub gc`."""
        self._stopped.set()
        for part in self._sent:
            part.cancel()
        wait(self._sent)
        connection = self._connection
        with suppress(StoreError, *REQUEST_ERRORS):  # once: who waits has had an error already
            connection.client.abort_multipart_upload(
                Bucket=connection.location.bucket,
                Key=connection.key(self._key),
                UploadId=self._upload_id,
                **connection.owner,
            )

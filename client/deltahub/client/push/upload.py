"""Uploads of whole files, each from where an earlier upload ended."""

import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from deltahub.client.api.endpoints import Api
from deltahub.client.errors import Busy, Conflict, UploadOffsetMismatch


class Uploader:
    """Uploads files by their SHA-256. Safe to use from several threads."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self.sent = 0

    def upload(self, path: Path, sha256: str, size: int, on_done: Callable[[int], None]) -> None:
        """Uploads the file; returns when the hub has all bytes and has verified their SHA-256.

        on_done: called with every byte once, including those that the hub already had.
        """
        reached = 0

        def advance(size_bytes: int) -> None:
            nonlocal reached
            reached += size_bytes
            on_done(size_bytes)

        def count(size_bytes: int) -> None:
            with self._lock:
                self.sent += size_bytes
            advance(size_bytes)

        with path.open("rb", buffering=0) as file:

            def attempt() -> bool:
                status = self._api.get_upload(sha256, size)
                start = status.received if status is not None else 0
                is_complete = status is not None and status.complete
                advance((size if is_complete else start) - reached)
                if is_complete:
                    return True
                try:
                    return self._api.put_upload(sha256, file, start, size, count)
                except UploadOffsetMismatch as exc:
                    # Another process uploads the same file: ask for the offset again.
                    raise ConnectionResetError(str(exc)) from exc
                except Conflict as exc:
                    # Another upload of the file still runs, or its connection broke and the hub
                    # has not noticed yet.
                    raise Busy(exc.message, status=HTTPStatus.SERVICE_UNAVAILABLE) from exc

            while not self._api.transport.with_retries(attempt, lambda: reached):
                pass

"""Uploads of whole files: small ones together, others from where an earlier upload ended."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from deltahub.client.api.endpoints import Api
from deltahub.client.api.parsing import field_of
from deltahub.client.api.transport import LONG_TIMEOUT_S
from deltahub.client.api.wire import odd_answer
from deltahub.client.errors import Busy, Conflict, LocalFileChanged, UploadOffsetMismatch
from deltahub.client.push.plan import SMALL_FILE, HashedFile

# Of one request, as the hub stores them at a time. The last file may exceed the bytes.
_TOGETHER_FILES: Final = 256
_TOGETHER_BYTES: Final = 8 << 20


def together(files: Iterable[HashedFile]) -> Iterator[list[HashedFile]]:
    """Lists of small files that go by one request each, and each other file in one of its own."""
    some: list[HashedFile] = []
    for each in files:
        if each.file.size >= SMALL_FILE:
            yield [each]
            continue
        some.append(each)
        if len(some) >= _TOGETHER_FILES or _size(some) >= _TOGETHER_BYTES:
            yield some
            some = []
    if some:
        yield some


def _size(files: Iterable[HashedFile]) -> int:
    return sum(each.file.size for each in files)


class Uploader:
    """Uploads files by their SHA-256. Safe to use from several threads."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self.sent = 0

    def upload_all(self, files: Sequence[HashedFile], on_done: Callable[[int], None]) -> None:
        """Uploads one of the lists that together() makes."""
        if files[0].file.size >= SMALL_FILE:
            (each,) = files
            self.upload(each.file.source, each.sha256, each.file.size, on_done)
            return
        body = bytearray()
        for each in files:
            data = each.file.source.read_bytes()
            body += len(data).to_bytes(4, "little") + data
        answer = self._api.transport.call(
            "POST", "/v1/uploads", body=bytes(body), timeout_s=LONG_TIMEOUT_S
        )
        sent = answer.read(_sha256s)
        if len(sent) != len(files):
            raise odd_answer(answer.request, f"it names {len(sent)} files of {len(files)}")
        for each, sha256 in zip(files, sent, strict=True):
            if each.sha256 != sha256:
                raise LocalFileChanged(f"{each.file.path} changed while it was pushed")
        with self._lock:
            self.sent += _size(files)
        on_done(_size(files))

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


def _sha256s(value: Any) -> tuple[str, ...]:
    return tuple(field_of(value, "sha256", tuple[str, ...]))

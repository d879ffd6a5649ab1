"""A store that reads ahead of those who read an object from front to back, a little at a time."""

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deltahub.registry.storage.base import Buffer, ObjectNotFound, ShortObject, Store, StoreError
from deltahub.registry.storage.forwarding import ForwardingStore

# The most bytes of one request. Its first request has fewer, because the next read may be the last.
WINDOW_BYTES: Final = 2 << 20
_FIRST_BYTES: Final = 256 << 10
# A read that begins at most so many bytes after the last one is its sequel.
_GAP_BYTES: Final = 256 << 10
# Readers that are read ahead of, each with up to three windows in memory; and those whose sequel is
# recognized.
MOST_STREAMS: Final = 8
_MOST_KNOWN: Final = 64
# Bytes that were fetched longer ago are not given out: they may not be in the store any more.
FRESH_S: Final = 5.0


@dataclass(eq=False)
class _Window:
    """Bytes [start, end) of an object, on their way since `asked_at`."""

    start: int
    end: int
    asked_at: float
    data: Future[memoryview]


@dataclass(eq=False)
class _Stream:
    """One reader of an object, whose last read was [start, end)."""

    key: str
    start: int
    end: int
    used_at: float
    size: int | None = None
    next_bytes: int = _FIRST_BYTES
    windows: list[_Window] = field(default_factory=list)


class SequentialReads(ForwardingStore):
    """The store `inner`, whose answers are late and may be large; get_into() reads ahead.

    A reader is known by its second read, which begins within the first or shortly after it. Who
    reads the same bytes again gets them from the store.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._streams: list[_Stream] = []
        self._pool = ThreadPoolExecutor(MOST_STREAMS, thread_name_prefix="ahead")

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        view = out.cast("B")
        end = start + view.nbytes
        if 0 < view.nbytes < WINDOW_BYTES:
            windows = self._windows(key, start, end)
            if windows and _fill(windows, start, view):
                return
        self.inner.get_into(key, start, view)

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        try:
            self.inner.put(key, chunks)
        finally:
            self._drop((key,))

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        try:
            self.inner.put_together(objects)
        finally:
            self._drop(objects)

    def take_file(self, key: str, path: Path) -> None:
        try:
            self.inner.take_file(key, path)
        finally:
            self._drop((key,))

    def delete_together(self, keys: Collection[str]) -> None:
        try:
            self.inner.delete_together(keys)
        finally:
            self._drop(keys)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.inner.close()

    def _windows(self, key: str, start: int, end: int) -> list[_Window]:
        """What covers [start, end) and is read ahead; none if this is no sequel of a read."""
        now = time.monotonic()
        with self._lock:
            for each in self._streams:
                if now - each.used_at > FRESH_S:
                    each.windows = []
            stream = self._sequel(key, start, now)
            if stream is None:
                self._begin(key, start, end, now)
                return []
            stream.start, stream.end, stream.used_at = start, end, now
            # Others wait for a place. Otherwise many readers would fetch ahead for nothing.
            n_ahead = sum(bool(each.windows) for each in self._streams if each is not stream)
            if n_ahead >= MOST_STREAMS:
                return []
        if stream.size is None:
            try:
                stream.size = self.inner.size(key)
            except StoreError:
                return []  # its reader gets the error
        if end > stream.size:
            return []
        with self._lock:
            return self._ask(stream, start, end, stream.size, now)

    def _sequel(self, key: str, start: int, now: float) -> _Stream | None:
        for stream in self._streams:
            is_next = stream.start < start <= stream.end + _GAP_BYTES
            if stream.key == key and is_next and now - stream.used_at < FRESH_S:
                return stream
        return None

    def _begin(self, key: str, start: int, end: int, now: float) -> None:
        if len(self._streams) >= _MOST_KNOWN:
            self._streams.remove(min(self._streams, key=lambda each: each.used_at))
        self._streams.append(_Stream(key, start, end, now))

    def _ask(self, stream: _Stream, start: int, end: int, size: int, now: float) -> list[_Window]:
        """The windows of [start, end). One more is fetched behind them."""
        kept = [each for each in stream.windows if each.end > start]
        if any(now - each.asked_at > FRESH_S for each in kept) or (kept and kept[0].start > start):
            kept = []
        position = kept[-1].end if kept else start
        while position < size and not (kept and kept[-1].start >= end):
            stop = min(size, position + stream.next_bytes)
            try:
                data = self._pool.submit(self._fetch, stream.key, position, stop)
            except RuntimeError:  # the store is being closed
                break
            kept.append(_Window(position, stop, now, data))
            stream.next_bytes = min(2 * stream.next_bytes, WINDOW_BYTES)
            position = stop
        stream.windows = kept if end < size else []
        return [each for each in kept if each.start < end]

    def _fetch(self, key: str, start: int, end: int) -> memoryview:
        data = memoryview(bytearray(end - start))
        self.inner.get_into(key, start, data)
        return data

    def _drop(self, keys: Collection[str]) -> None:
        with self._lock:
            self._streams = [each for each in self._streams if each.key not in keys]


def _fill(windows: list[_Window], start: int, out: memoryview) -> bool:
    """Whether all of `out` was filled. A reader of what cannot be read gets the store's error."""
    end = start + out.nbytes
    position = start
    with suppress(ObjectNotFound, ShortObject, CancelledError):  # cancelled by close()
        for window in windows:
            data = window.data.result()
            low, high = max(position, window.start), min(end, window.end)
            out[low - start : high - start] = data[low - window.start : high - window.start]
            position = high
    return position == end

"""A store that reads ahead of those who read an object from front to back, a little at a time."""

import threading
import time
from collections.abc import Collection
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from deltahub.registry import cancellation
from deltahub.registry.storage.base import Store, StoreError
from deltahub.registry.storage.forwarding import HoldingStore

# The most bytes of one request. Its first request has fewer, because the next read may be the last.
WINDOW_BYTES: Final = 2 << 20
_FIRST_BYTES: Final = 256 << 10
# A read that begins at most so many bytes after the last one is its sequel.
_GAP_BYTES: Final = 64 << 10
# Readers that are read ahead of, each with up to three windows in memory; and those whose sequel is
# recognized.
MOST_STREAMS: Final = 8
_MOST_KNOWN: Final = 64
# Bytes that came longer ago are not given out: they may not be in the store any more.
FRESH_S: Final = 15.0
# How often one who waits for bytes looks whether its caller has left.
_LOOK_S: Final = 0.2


@dataclass(eq=False)
class _Window:
    """Bytes [start, end) of an object, which came at `came_at` or are on their way."""

    start: int
    end: int
    data: Future[memoryview] = field(default_factory=Future)
    came_at: float | None = None

    def is_old(self, now: float) -> bool:
        return self.came_at is not None and now - self.came_at > FRESH_S


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
    is_waited_for: bool = False

    def drop_windows(self) -> None:
        for each in self.windows:
            each.data.cancel()
        self.windows = []


class SequentialReads(HoldingStore):
    """The store `inner`, whose answers are late and may be large; get_into() reads ahead.

    A reader is known by its second read, which begins within the first or shortly after it. A read
    that begins at the same byte as the last one gets its bytes from the store. Memory: 48 MiB.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._streams: list[_Stream] = []
        self._pool = ThreadPoolExecutor(MOST_STREAMS, thread_name_prefix="ahead")

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        view = out.cast("B")
        if not 0 < view.nbytes < WINDOW_BYTES:
            self.inner.get_into(key, start, view)
            return
        stream, is_sequel = self._stream(key, start, start + view.nbytes)
        try:
            if not (is_sequel and self._read_ahead(stream, start, view)):
                self.inner.get_into(key, start, view)
        finally:
            stream.is_waited_for = False
            stream.used_at = time.monotonic()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.inner.close()

    def _stream(self, key: str, start: int, end: int) -> tuple[_Stream, bool]:
        """The reader whose next read this is, or a new one; and whether it is read ahead of."""
        now = time.monotonic()
        with self._lock:
            for each in self._streams:
                if not each.is_waited_for and now - each.used_at > FRESH_S:
                    each.drop_windows()
            for stream in self._streams:
                is_next = stream.start < start <= stream.end + _GAP_BYTES
                if stream.key == key and is_next and now - stream.used_at < FRESH_S:
                    stream.start, stream.end = start, end
                    # Others wait for a place. Otherwise many readers would fetch ahead for nothing.
                    others = (each for each in self._streams if each is not stream)
                    is_sequel = sum(bool(each.windows) for each in others) < MOST_STREAMS
                    stream.is_waited_for = is_sequel
                    return stream, is_sequel
            if len(self._streams) >= _MOST_KNOWN:
                oldest = min(self._streams, key=lambda each: each.used_at)
                oldest.drop_windows()
                self._streams.remove(oldest)
            stream = _Stream(key, start, end, now)
            self._streams.append(stream)
            return stream, False

    def _read_ahead(self, stream: _Stream, start: int, out: memoryview) -> bool:
        """Whether `out` was filled from what is read ahead."""
        end = start + out.nbytes
        if stream.size is None:
            try:
                stream.size = self.inner.size(stream.key)
            except StoreError:
                return False  # its reader gets the error
        if end > stream.size:
            return False
        with self._lock:
            windows = self._ask(stream, start, end, stream.size)
        return _fill(windows, start, out)

    def _ask(self, stream: _Stream, start: int, end: int, size: int) -> list[_Window]:
        """The windows of [start, end). One more is fetched behind them."""
        now = time.monotonic()
        kept = [each for each in stream.windows if each.end > start]
        if any(each.is_old(now) or _has_failed(each) for each in kept):
            stream.drop_windows()
            stream.next_bytes, kept = _FIRST_BYTES, []
        elif kept and kept[0].start > start:
            stream.drop_windows()
            kept = []
        position = kept[-1].end if kept else start
        while position < size and not (kept and kept[-1].start >= end):
            window = _Window(position, min(size, position + stream.next_bytes))
            try:
                window.data = self._pool.submit(self._fetch, stream.key, window)
            except RuntimeError:  # the store is being closed
                break
            kept.append(window)
            stream.next_bytes = min(2 * stream.next_bytes, WINDOW_BYTES)
            position = window.end
        stream.windows = kept if end < size else []
        return [each for each in kept if each.start < end]

    def _fetch(self, key: str, window: _Window) -> memoryview:
        data = memoryview(bytearray(window.end - window.start))
        self.inner.get_into(key, window.start, data)
        window.came_at = time.monotonic()
        return data

    def _drop(self, keys: Collection[str]) -> None:
        with self._lock:
            self._streams = [each for each in self._streams if each.key not in keys]


def _has_failed(window: _Window) -> bool:
    data = window.data
    return data.done() and (data.cancelled() or data.exception() is not None)


def _fill(windows: list[_Window], start: int, out: memoryview) -> bool:
    """Whether all of `out` was filled. The error of a window that was all asked for is raised.

    Other errors may be of bytes that were not asked for: the store is to say.
    """
    end = start + out.nbytes
    position = start
    for window in windows:
        try:
            data = _awaited(window.data)
        except CancelledError:
            return False
        except StoreError:
            if start <= window.start and window.end <= end:
                raise
            return False
        low, high = max(position, window.start), min(end, window.end)
        out[low - start : high - start] = data[low - window.start : high - window.start]
        position = high
    return position == end


def _awaited(future: Future[memoryview]) -> memoryview:
    while not future.done():
        wait([future], _LOOK_S)
        cancellation.check()
    return future.result()

"""A store whose operations are timed and counted."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Final, TypeVar

from deltahub.registry.measures import Measures
from deltahub.registry.storage.base import Buffer, ObjectInfo, Store, StoreError, Unfinished
from deltahub.registry.storage.forwarding import ForwardingStore

T = TypeVar("T")

READ: Final = ("read",)
WRITTEN: Final = ("written",)
# Errors that are none of the store's own, such as those of the caller's chunks.
_OTHER: Final = "other"


class MeasuredStore(ForwardingStore):
    """The store `inner`, which is a place of objects itself: nothing between caches.

    The time of a put includes that in which the caller makes the bytes. Links are not timed,
    because a store makes them without asking anybody.
    """

    def __init__(self, inner: Store, measures: Measures) -> None:
        super().__init__(inner)
        self._measures = measures

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        with self._timed("put"):
            self.inner.put(key, self._counted(chunks))

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        with self._timed("put_together"):
            self.inner.put_together(objects)
        self._measures.store_bytes.add(WRITTEN, sum(memoryview(b).nbytes for b in objects.values()))

    def take_file(self, key: str, path: Path) -> None:
        with self._timed("take_file"):
            n_bytes = path.stat().st_size  # the store moves the file away
            self.inner.take_file(key, path)
        self._measures.store_bytes.add(WRITTEN, n_bytes)

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        with self._timed("get"):
            self.inner.get_into(key, start, out)
        self._measures.store_bytes.add(READ, out.nbytes)

    def get_cached_into(self, key: str, start: int, out: memoryview) -> None:
        with self._timed("get"):
            self.inner.get_cached_into(key, start, out)
        self._measures.store_bytes.add(READ, out.nbytes)

    def size(self, key: str) -> int:
        with self._timed("size"):
            return self.inner.size(key)

    def delete_together(self, keys: Collection[str]) -> None:
        with self._timed("delete"):
            self.inner.delete_together(keys)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._timed_steps("list", lambda: self.inner.list(prefix))

    def unfinished(self) -> Iterator[Unfinished]:
        return self._timed_steps("list_unfinished", self.inner.unfinished)

    def discard_unfinished(self, unfinished: Unfinished) -> bool:
        with self._timed("discard_unfinished"):
            return self.inner.discard_unfinished(unfinished)

    def mark(self) -> str | None:
        with self._timed("mark"):
            return self.inner.mark()

    def set_mark(self, mark: str) -> None:
        with self._timed("set_mark"):
            self.inner.set_mark(mark)

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        began = perf_counter()
        try:
            with self._errors_counted(operation):
                yield
        finally:
            self._measures.store_seconds.add((operation,), perf_counter() - began)

    @contextmanager
    def _errors_counted(self, operation: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = error.code if isinstance(error, StoreError) else _OTHER
            self._measures.store_errors.add((operation, kind))
            raise

    def _timed_steps(self, operation: str, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """The items of an iterator, with one duration for the time in which it makes them all."""
        seconds = 0.0
        try:
            with self._errors_counted(operation):
                began = perf_counter()
                for item in begin():
                    seconds += perf_counter() - began
                    yield item
                    began = perf_counter()
                seconds += perf_counter() - began
        finally:
            self._measures.store_seconds.add((operation,), seconds)

    def _counted(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        for chunk in chunks:
            yield chunk
            self._measures.store_bytes.add(WRITTEN, memoryview(chunk).nbytes)

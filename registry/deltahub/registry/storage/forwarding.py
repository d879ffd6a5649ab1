"""A store in front of another one."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from deltahub.registry.storage.base import Buffer, ObjectInfo, PartStore, Store, Unfinished


class ForwardingStore:
    """Passes every call on to the store `inner`. A subclass changes what it is made for."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        self.inner.put(key, chunks)

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        self.inner.put_together(objects)

    def take_file(self, key: str, path: Path) -> None:
        self.inner.take_file(key, path)

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        self.inner.get_into(key, start, out)

    def get_cached_into(self, key: str, start: int, out: memoryview) -> None:
        self.inner.get_cached_into(key, start, out)

    def prefetch(self, key: str, start: int, end: int) -> None:
        self.inner.prefetch(key, start, end)

    def forget(self, key: str) -> None:
        self.inner.forget(key)

    def size(self, key: str) -> int:
        return self.inner.size(key)

    def delete(self, key: str) -> None:
        self.delete_together((key,))

    def delete_together(self, keys: Collection[str]) -> None:
        self.inner.delete_together(keys)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix)

    def unfinished(self) -> Iterator[Unfinished]:
        return self.inner.unfinished()

    def discard_unfinished(self, unfinished: Unfinished) -> bool:
        return self.inner.discard_unfinished(unfinished)

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str | None:
        return self.inner.link(key, start, end, lifetime_s)

    def parts(self) -> PartStore | None:
        return self.inner.parts()

    def mark(self) -> str | None:
        return self.inner.mark()

    def set_mark(self, mark: str) -> None:
        self.inner.set_mark(mark)

    def close(self) -> None:
        self.inner.close()


class HoldingStore(ForwardingStore):
    """Holds bytes of objects of `inner`; drops them once the store has put or deleted the object.

    A subclass drops what it holds in _drop().
    """

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        try:
            self.inner.put(key, chunks)
        finally:  # the put may have worked although its answer was lost
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

    def _drop(self, keys: Collection[str]) -> None:
        raise NotImplementedError

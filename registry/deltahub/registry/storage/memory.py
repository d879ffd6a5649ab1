"""An object store in the memory of this process, for tests."""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from deltahub.registry.storage.base import (
    Buffer,
    NoCache,
    ObjectInfo,
    ObjectNotFound,
    ShortObject,
    Unfinished,
)
from deltahub.registry.storage.keys import check_key, check_prefix


class MemoryStore(NoCache):
    """A Store whose objects are lost with the process."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._mark: str | None = None
        self._lock = threading.Lock()

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        check_key(key)
        data = b"".join(chunks)
        with self._lock:
            self._objects[key] = (data, datetime.now(UTC))

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        for key, data in objects.items():
            self.put(key, [data])

    def take_file(self, key: str, path: Path) -> None:
        self.put(key, [path.read_bytes()])
        path.unlink()

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        data = self._get(key)[0]
        piece = data[start : start + out.nbytes]
        if len(piece) < out.nbytes:
            end = start + out.nbytes
            raise ShortObject(f"{key} has {len(data)} bytes; {start}..{end} were asked")
        out.cast("B")[:] = piece

    def size(self, key: str) -> int:
        return len(self._get(key)[0])

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def delete_together(self, keys: Collection[str]) -> None:
        for key in keys:
            self.delete(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            objects = sorted(self._objects.items())
        for key, (data, modified_at) in objects:
            if key.startswith(prefix):
                yield ObjectInfo(key, len(data), modified_at)

    def unfinished(self) -> Iterator[Unfinished]:
        yield from ()

    def discard_unfinished(self, unfinished: Unfinished) -> bool:
        return False

    def parts(self) -> None:
        return None

    def mark(self) -> str | None:
        return self._mark

    def set_mark(self, mark: str) -> None:
        self._mark = mark

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str | None:
        return None

    def close(self) -> None:
        pass

    def _get(self, key: str) -> tuple[bytes, datetime]:
        check_key(key)
        with self._lock:
            if key not in self._objects:
                raise ObjectNotFound(f"there is no object {key}")
            return self._objects[key]

"""A store that fails in the ways in which a remote one does, drawn by seed.

Every fault passes by itself: bytes that were put are never changed or lost. So whoever uses the
store may fail for a moment, and must never believe that something is gone.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from deltahub.registry.storage.base import Buffer, ObjectInfo, Store, StoreUnavailable
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.keys import check_key
from deltahub.registry.storage.open import open_store

SLOW_S: Final = 0.002
# How many calls later a listing shows what was put or deleted.
STALE_CALLS: Final = 20


class Killed(BaseException):
    """The process "died" in a call of the store. Its store does nothing any more."""


class Faults:
    """What goes wrong, for all stores that one test opens one after another.

    rate: share of the calls that fail, 0 to 1. As many are slow, and listings are stale at any rate
    above 0. kill_in: the process dies in the call that comes after so many others.
    """

    def __init__(self, seed: int, rate: float = 0.0) -> None:
        self.rate = rate
        self.kill_in: int | None = None
        self.is_dead = False
        self.seen: Counter[str] = Counter()
        self.chance = random.Random(seed)
        self.lock = threading.Lock()
        self._n_calls = 0
        self._put_at: dict[str, int] = {}
        self._deleted: dict[str, tuple[int, ObjectInfo]] = {}

    @contextmanager
    def off(self) -> Iterator[None]:
        """A context without faults."""
        rate, kill_in, self.rate, self.kill_in = self.rate, self.kill_in, 0.0, None
        try:
            yield
        finally:
            self.rate, self.kill_in = rate, kill_in

    def restart(self) -> None:
        """The next process lives."""
        self.is_dead, self.kill_in = False, None

    def draw(self, key: str, kinds: tuple[str, ...]) -> str | None:
        """The fault of a call, None for none. Counts calls, and is slow now and then."""
        with self.lock:
            if self.is_dead:
                raise Killed
            self._n_calls += 1
            if self.kill_in is not None:
                self.kill_in -= 1
                if self.kill_in < 0:
                    self.is_dead = True
                    self.seen["killed"] += 1
                    # Its effect may have happened or not.
                    return "lost" if "lost" in kinds and self.chance.random() < 0.5 else "refused"
            if self.chance.random() < self.rate:
                time.sleep(SLOW_S)
            if self.chance.random() >= self.rate:
                return None
            kind = self.chance.choice(kinds)
            self.seen[kind] += 1
            return kind

    def error(self, key: str, kind: str) -> BaseException:
        if self.is_dead:
            return Killed()
        texts = {
            "throttled": "SlowDown: Please reduce your request rate",
            "refused": "InternalError: We encountered an internal error",
            "short": "the answer ended early",
            "half": "the connection was lost while the object was sent",
            "lost": "the connection was lost before the answer came",
        }
        return StoreUnavailable(f"{key}: {texts[kind]}")

    def note_put(self, key: str) -> None:
        with self.lock:
            self._put_at[key] = self._n_calls
            self._deleted.pop(key, None)

    def note_deleted(self, key: str, info: ObjectInfo) -> None:
        with self.lock:
            self._deleted[key] = (self._n_calls, info)

    def stale(self, found: list[ObjectInfo], prefix: str) -> list[ObjectInfo]:
        """The listing without some of the newest objects, and with some that were deleted."""
        with self.lock:
            if not self.rate:
                return found
            oldest = self._n_calls - STALE_CALLS
            kept = [
                info for info in found
                if self._put_at.get(info.key, 0) <= oldest or self.chance.random() < 0.5
            ]  # fmt: skip
            gone = [
                info for key, (at, info) in self._deleted.items()
                if key.startswith(prefix) and at > oldest and self.chance.random() < 0.5
            ]  # fmt: skip
            self.seen["listed late"] += len(found) - len(kept)
            self.seen["listed still"] += len(gone)
            return kept + gone


class FaultyStore:
    """A Store in front of another one, with faults. At rate 0 it does what the other does."""

    def __init__(self, store: Store, faults: Faults) -> None:
        self.store = store
        self.faults = faults

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        check_key(key)
        kind = self._begin(key, "refused", "throttled", "half", "lost")
        if kind == "half":
            self._write_half(key, chunks)
        self.store.put(key, chunks)
        self._end(key, kind)

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        first = next(iter(objects), "")
        kind = self._begin(first, "refused", "throttled", "half", "lost")
        if kind == "half":
            n = self.faults.chance.randrange(len(objects) + 1)
            objects = dict(self.faults.chance.sample(sorted(objects.items()), n))
        self.store.put_together(objects)
        for key in objects:
            self.faults.note_put(key)
        self._raise(first, kind)

    def take_file(self, key: str, path: Path) -> None:
        check_key(key)
        kind = self._begin(key, "refused", "throttled", "lost", "lost but sent")
        if kind == "lost but sent":
            # A bucket has the object, and the file is still here.
            self.store.put(key, [path.read_bytes()])
            kind = "lost"
        else:
            self.store.take_file(key, path)
        self._end(key, kind)

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        check_key(key)
        kind = self._begin(key, "refused", "throttled", "short", "lost")
        if kind == "short":
            view = out.cast("B")
            self.store.get_into(key, start, view[: len(view) // 2])
        else:
            self.store.get_into(key, start, out)
        self._raise(key, kind)

    def size(self, key: str) -> int:
        check_key(key)
        self._begin(key, "refused", "throttled")
        return self.store.size(key)

    def delete(self, key: str) -> None:
        self.delete_together((key,))

    def delete_together(self, keys: Collection[str]) -> None:
        for key in keys:
            check_key(key)
        first = next(iter(keys), "")
        kind = self._begin(first, "refused", "throttled", "half", "lost")
        if kind == "half":
            keys = [key for key in keys if self.faults.chance.random() < 0.5]
        if self.faults.rate:
            listed = {info.key: info for info in self.store.list("")}
            for key in keys:
                if key in listed:
                    self.faults.note_deleted(key, listed[key])
        self.store.delete_together(keys)
        self._raise(first, kind)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        kind = self._begin(prefix, "refused", "throttled", "half")
        found = self.faults.stale(list(self.store.list(prefix)), prefix)
        yield from found[: len(found) // 2] if kind == "half" else found
        self._raise(prefix, kind)

    def mark(self) -> str | None:
        self._begin("the mark", "refused", "throttled")
        return self.store.mark()

    def set_mark(self, mark: str) -> None:
        kind = self._begin("the mark", "refused", "throttled", "lost")
        self.store.set_mark(mark)
        self._raise("the mark", kind)

    def close(self) -> None:
        self.store.close()

    def __getattr__(self, name: str) -> object:
        """What the other store does beside the interface."""
        return getattr(self.store, name)

    def _begin(self, key: str, *kinds: str) -> str | None:
        """The fault that the call meets after its effect; raises one that comes before it."""
        kind = self.faults.draw(key, kinds)
        if kind in ("refused", "throttled"):
            raise self.faults.error(key, kind)
        return kind

    def _end(self, key: str, kind: str | None) -> None:
        self.faults.note_put(key)
        self._raise(key, kind)

    def _raise(self, key: str, kind: str | None) -> None:
        if kind is not None:
            raise self.faults.error(key, kind)

    def _write_half(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Put a part of the object into the other store, and fail there."""
        error = self.faults.error(key, "half")

        def broken() -> Iterator[Buffer]:
            for chunk in chunks:
                view = memoryview(chunk).cast("B")
                yield view[: len(view) // 2]
                break
            raise error

        self.store.put(key, broken())


@contextmanager
def stores_are_faulty(faults: Faults, opened: Callable[[], Store] | None = None) -> Iterator[None]:
    """A context in which every registry that is opened has a faulty store.

    opened: makes the store behind it, by default the one of the settings.
    """

    def faulty(url: str, folder: Path, settings: object, disk: Disk, **more: bool) -> Store:
        store = opened() if opened else open_store(url, folder, settings, disk, **more)  # type: ignore[arg-type]
        return FaultyStore(store, faults)

    with patch("deltahub.registry.stores.current.open_store", faulty):
        yield

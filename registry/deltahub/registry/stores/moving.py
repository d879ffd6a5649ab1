"""A store that may be moved to another place while processes read and write.

The records (places.py) say where the objects are. Every process follows them by itself:

- A read uses a record that it knows for up to a second. If the object is not there, it reads the
  record anew, and looks in the current place, then in the previous one. The objects of a place that
  was left stay there for the readers' lease at least, so a record that is a second old does no
  harm.
- A write takes the lock of the current place (write_locks.py), and only then reads the record. If
  the place is still current, it writes there, and keeps the lock until its effect is durable.
- A deletion reads the record, deletes in all places in the order in which objects are copied, and
  reads the record again. If another place has come meanwhile, it deletes there, too.

Why no write is lost. Let S be the transaction that makes B current and A previous. A writer that
has read its record before S holds the lock of A until its object lies in A. A writer that reads its
record after S writes to B. After S, the copy waits until nobody holds the lock of A. From then on
nobody writes to A, so whatever lies in A lies in its list, and is copied. Only then does
the record of A go. So a reader finds each object at each moment: in A before S; in B or A after S;
in B when the record of A has gone. An object that is in A alone is never acknowledged after that,
because whoever finds it there finds it while the copy still has to come to it.

Why no object comes back that was deleted. The copy writes an object to the next place, and then
asks whether the first place still has it; if not, and if its row has gone or is condemned, which
comes before each deletion, it deletes it again. A deletion deletes in the
first place, and then in the next. If the copy has seen the object in the first place, the deletion
there comes later, and so does the deletion in the next place. The record of the next place is
written before any copy, so a deletion that has not seen it when it began sees it at its end.

A key names the same bytes for ever: keys are random, and what is put again is what was lost.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from deltahub.registry.storage.base import (
    Buffer,
    ObjectInfo,
    ObjectNotFound,
    PartStore,
    Store,
    StoreError,
    Unfinished,
)
from deltahub.registry.stores.parts import PlacedParts
from deltahub.registry.stores.places import Place, Places

log = logging.getLogger(__name__)

T = TypeVar("T")

# A read uses a record of this age in seconds at most.
RECORD_AGE_S: Final = 1.0
# For so many seconds a place that could not be opened is not tried again.
_FAILED_S: Final = 3.0


class MovingStore:
    """The Store in the current place. Safe to share between threads."""

    def __init__(
        self,
        places: Places,
        store: Store,
        *,
        read_places: Callable[[], Places],
        open_place: Callable[[Place], Store],
        writing: Callable[[str], AbstractContextManager[None]],
        close_locks: Callable[[], None] = lambda: None,
    ) -> None:
        """places, store: the store that is open, and its record. The first use reads the records.

        read_places() reads the records from the database. writing(mark): WriteLocks.writing.
        """
        self._read_places = read_places
        self._open_place = open_place
        self._writing = writing
        self._close_locks = close_locks
        self._lock = threading.Lock()
        self._stores = {places.current.mark: store}
        self._unusable_targets: set[str] = set()
        self._places = places
        self._current = store
        self._known_until = 0.0
        self._opening = threading.Lock()
        # Mark -> (until when nobody tries to open the place again, the error of the last try)
        self._failed: dict[str, tuple[float, StoreError]] = {}

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        with self._written_store() as store:
            store.put(key, chunks)

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        with self._written_store() as store:
            store.put_together(objects)

    def take_file(self, key: str, path: Path) -> None:
        with self._written_store() as store:
            store.take_file(key, path)

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        asked = self._places
        if time.monotonic() < self._known_until:
            try:
                return self._current.get_into(key, start, out)
            except StoreError as exc:
                if not self._may_be_elsewhere(exc, asked):
                    raise
        self._read(lambda store: store.get_into(key, start, out))

    def get_cached_into(self, key: str, start: int, out: memoryview) -> None:
        asked = self._places
        if time.monotonic() < self._known_until:
            try:
                return self._current.get_cached_into(key, start, out)
            except StoreError as exc:
                if not self._may_be_elsewhere(exc, asked):
                    raise
        self._read(lambda store: store.get_cached_into(key, start, out))

    def prefetch(self, key: str, start: int, end: int) -> None:
        self._current.prefetch(key, start, end)

    def forget(self, key: str) -> None:
        for store in list(self._stores.values()):
            store.forget(key)

    def size(self, key: str) -> int:
        asked = self._places
        if time.monotonic() < self._known_until:
            try:
                return self._current.size(key)
            except StoreError as exc:
                if not self._may_be_elsewhere(exc, asked):
                    raise
        return self._read(lambda store: store.size(key))

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str | None:
        """As in Store. None during a move, because nobody knows which place has the object."""
        if time.monotonic() >= self._known_until:
            self._look()
        return None if self._places.previous else self._current.link(key, start, end, lifetime_s)

    def parts(self) -> PartStore | None:
        """Those of the current place, until a move: an upload does not move, and begins again."""
        if time.monotonic() >= self._known_until:
            self._look()
        parts = self._current.parts()
        return None if parts is None else PlacedParts(parts, self._written_store)

    def unfinished(self) -> Iterator[Unfinished]:
        """Those of the current place. What was begun in another one stays there."""
        yield from self._store(self._look().current).unfinished()

    def discard_unfinished(self, unfinished: Unfinished) -> bool:
        return self._store(self._look().current).discard_unfinished(unfinished)

    def delete(self, key: str) -> None:
        self.delete_together((key,))

    def delete_together(self, keys: Collection[str]) -> None:
        places = self._look()
        while True:
            for place in places.in_order_of_copying():
                if place == places.target:
                    self._delete_in_target(place, keys)
                else:
                    self._store(place).delete_together(keys)
            done, places = places, self._look()
            if places == done:
                return

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        places = self._look()
        if places.previous is None:
            yield from self._store(places.current).list(prefix)
            return
        listed = set()
        for info in self._store(places.current).list(prefix):
            listed.add(info.key)
            yield info
        for info in self._store(places.previous).list(prefix):
            if info.key not in listed:
                yield info

    def mark(self) -> str | None:
        return self._store(self._look().current).mark()

    def set_mark(self, mark: str) -> None:
        self._store(self._look().current).set_mark(mark)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._close_locks()

    def _may_be_elsewhere(self, error: StoreError, asked: Places) -> bool:
        """Whether a read that used these records may succeed by the records of this moment."""
        now = self._look()
        return now != asked or (isinstance(error, ObjectNotFound) and now.previous is not None)

    def _read(self, ask: Callable[[Store], T]) -> T:
        places = self._look()
        while True:
            try:
                return ask(self._store(places.current))
            except ObjectNotFound:
                if places.previous is not None:
                    try:
                        return ask(self._store(places.previous))
                    except ObjectNotFound:
                        pass
                asked, places = places, self._look()
                if places == asked:
                    raise

    @contextmanager
    def _written_store(self) -> Iterator[Store]:
        """The current store. It may stop being current, but no copy of it ends meanwhile."""
        place = self._places.current
        while True:
            with self._writing(place.mark):
                current = self._look().current
                if current.mark == place.mark:
                    yield self._store(current)
                    return
            place = current

    def _delete_in_target(self, place: Place, keys: Collection[str]) -> None:
        """The hub does not depend on the target yet; the copy deletes there what is left over."""
        if place.mark in self._unusable_targets:
            return
        try:
            self._store(place).delete_together(keys)
        except StoreError as exc:
            self._unusable_targets.add(place.mark)
            log.warning(
                "place=%s the hub's objects are being copied there, and this process cannot use"
                " it (%s): give it the settings and credentials before the copy switches",
                place.name,
                exc,
            )

    def _look(self) -> Places:
        """The records of this moment."""
        looked_at = time.monotonic()
        places = self._read_places()
        if places != self._places:
            store = self._store(places.current)
            with self._lock:
                if places.current.mark != self._places.current.mark:
                    log.info("the hub's objects lie in %s from now on", places.current.name)
                self._places, self._current = places, store
        self._known_until = looked_at + RECORD_AGE_S
        return places

    def _store(self, place: Place) -> Store:
        store = self._stores.get(place.mark)
        if store is not None:
            return store
        with self._opening:
            store = self._stores.get(place.mark)
            if store is None:
                # Threads that have waited for a place that does not answer do not try it in turn.
                until, error = self._failed.get(place.mark, (0.0, None))
                if error is not None and time.monotonic() < until:
                    raise type(error)(str(error))
                try:
                    store = self._stores[place.mark] = self._open_place(place)
                except StoreError as exc:
                    self._failed[place.mark] = time.monotonic() + _FAILED_S, exc
                    raise
            return store

"""Copies objects from one store to another, each read back from there and compared."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from deltahub.registry import failpoints
from deltahub.registry.db.session import Database
from deltahub.registry.maintenance.move.expected import Digest, Expected, expectations, keys_of_rows
from deltahub.registry.storage.base import ObjectNotFound, ShortObject, Store, StoreUnavailable

PIECE_BYTES: Final = 4 << 20
# Objects that are copied side by side.
_PARALLEL: Final = 4
_BATCH: Final = 256


@dataclass
class Copied:
    """What a copy did so far. damaged: objects that are not what their rows say, with the reason.

    left_behind: objects that no row knows, and unfinished uploads that are not whole.
    """

    objects: int = 0
    bytes: int = 0
    already_there: int = 0
    already_there_bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    left_behind: set[str] = field(default_factory=set)


class _Damaged(Exception):
    """The bytes of the source are not those that its row names."""


class Copier:
    """Copies the objects of `source` to `target`. Not for several threads.

    is_live: the target is current, so others write to it. What is there is then not replaced.
    """

    def __init__(
        self, db: Database, source: Store, target: Store, progress: Callable[[Copied], None]
    ) -> None:
        self.copied = Copied()
        self.is_live = False
        # Objects that this copier has compared in the target, byte by byte.
        self._done: set[str] = set()
        self._listed: set[str] = set()
        self._db = db
        self._source = source
        self._target = target
        self._progress = progress
        self._counting = threading.Lock()

    def copy_all(self) -> int:
        """Copy what is not copied yet; returns the number of objects that were."""
        before = self.copied.objects
        self.copied.damaged.clear()
        self.copied.left_behind.clear()
        keys = self._keys()
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="move") as pool:
            while batch := list(islice(keys, _BATCH)):
                todo = [key for key in batch if key not in self._done]
                with self._db.read() as session:
                    expected = expectations(session, todo)
                try:
                    for _ in pool.map(self._copy, todo, (expected[key] for key in todo)):
                        self._progress(self.copied)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        return self.copied.objects - before

    def delete_strays(self) -> int:
        """Delete what the target has and the source has no more; returns the number of objects.

        In a live target only what no row knows: the rest was written there by others.
        """
        count = 0
        strays = (i.key for i in self._target.list("") if i.key not in self._listed)
        while batch := list(islice(strays, _BATCH)):
            gone = [key for key in batch if _size(self._source, key) is None]
            if self.is_live:
                with self._db.read() as session:
                    expected = expectations(session, gone)
                gone = [key for key in gone if expected[key].kind == "unknown"]
            self._target.delete_together(gone)
            count += len(gone)
        return count

    def check_all(self) -> None:
        """Ask the target for the object of each row; what is missing becomes `damaged`."""
        keys = keys_of_rows(self._db)
        with ThreadPoolExecutor(_PARALLEL * 2, thread_name_prefix="move") as pool:
            while batch := list(islice(keys, _BATCH)):
                with self._db.read() as session:
                    expected = expectations(session, batch)
                needed = [key for key in batch if expected[key].kind == "needed"]
                sizes = pool.map(lambda key: _size(self._target, key), needed)
                for key, size in zip(needed, sizes, strict=True):
                    if size != expected[key].size:
                        self._note_damage(key, "the copy is missing or cut short")

    def _keys(self) -> Iterator[str]:
        """Of all objects by the source's list, and of those that rows name and it leaves out."""
        self._listed = set()
        for info in self._source.list(""):
            self._listed.add(info.key)
            yield info.key
        for key in keys_of_rows(self._db):
            if key not in self._listed:
                yield key

    def _copy(self, key: str, expected: Expected) -> None:
        if expected.kind == "unknown":
            if key in self._listed:
                self.copied.left_behind.add(key)
            return
        try:
            self._copy_known(key, expected)
        except (ObjectNotFound, ShortObject, _Damaged) as exc:
            if expected.kind == "needed":
                self._note_damage(key, str(exc))
            elif expected.kind == "awaited":
                self.copied.left_behind.add(key)

    def _copy_known(self, key: str, expected: Expected) -> None:
        try:
            size = self._source.size(key)
        except ObjectNotFound:
            if expected.kind == "needed":
                raise
            return  # no object yet, or none any more
        if expected.kind != "as_is" and size != expected.size:
            raise _Damaged(f"it has {size} bytes, and its row says {expected.size}")
        is_there = _size(self._target, key) == size
        if is_there and self._is_equal(key, size, expected):
            with self._counting:
                self.copied.already_there += 1
                self.copied.already_there_bytes += size
                self._done.add(key)
            return
        if is_there and self.is_live and expected.kind == "as_is":
            return  # it was repaired after the switch
        digest = expected.new_digest()
        self._target.put(key, _checked(self._source, key, size, digest, expected))
        failpoints.reached("move.object.after_put")
        if _digest_of(self._target, key, size, expected.new_digest()) != digest.digest():
            self._target.delete(key)
            raise StoreUnavailable(f"{key} did not come back from the target as it was written")
        failpoints.reached("move.object.after_proof")
        if _size(self._source, key) is None:  # it was deleted meanwhile: see stores/moving.py
            self._target.delete(key)
            return
        with self._counting:
            self.copied.objects += 1
            self.copied.bytes += size
            if expected.kind != "as_is":  # those bytes may still change
                self._done.add(key)

    def _is_equal(self, key: str, size: int, expected: Expected) -> bool:
        found = _digest_of(self._target, key, size, expected.new_digest())
        if expected.digest is not None:
            return found == expected.digest
        return found == _digest_of(self._source, key, size, expected.new_digest())

    def _note_damage(self, key: str, why: str) -> None:
        """Look at the row again: the object may have been deleted, or marked, meanwhile."""
        with self._db.read() as session:
            expected = expectations(session, [key])[key]
        if expected.kind != "needed":
            return
        size = _size(self._target, key) if self.is_live else None
        if size is not None and size == expected.size and self._is_equal(key, size, expected):
            return  # others wrote it there
        self.copied.damaged[key] = why


def _checked(
    source: Store, key: str, size: int, digest: Digest, expected: Expected
) -> Iterator[bytearray]:
    """The bytes of an object. A digest that differs ends the put, which then leaves nothing."""
    for piece in _pieces(source, key, size):
        digest.update(piece)
        yield piece
    if expected.digest not in (None, digest.digest()):
        raise _Damaged("its bytes are not those that its row names")


def _digest_of(store: Store, key: str, size: int, digest: Digest) -> bytes:
    for piece in _pieces(store, key, size):
        digest.update(piece)
    return digest.digest()


def _pieces(store: Store, key: str, size: int) -> Iterable[bytearray]:
    for start in range(0, size, PIECE_BYTES):
        piece = bytearray(min(PIECE_BYTES, size - start))
        store.get_into(key, start, memoryview(piece))
        yield piece


def _size(store: Store, key: str) -> int | None:
    try:
        return store.size(key)
    except ObjectNotFound:
        return None

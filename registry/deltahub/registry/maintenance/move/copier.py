"""Copies objects from one store to another, each read back from there and compared."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from deltahub.registry import failpoints
from deltahub.registry.db.session import Database
from deltahub.registry.maintenance.move.compare import (
    WrongBytes,
    are_equal,
    checked,
    digest_in,
    is_right,
    size_in,
)
from deltahub.registry.maintenance.move.expected import Expected, expectations, keys_of_rows
from deltahub.registry.maintenance.object_rows import deferred_deletions, lasting_objects
from deltahub.registry.storage.base import (
    ObjectNotFound,
    ShortObject,
    Store,
    StoreError,
    StoreUnavailable,
)
from deltahub.registry.storage.keys import COPIES
from deltahub.registry.stores.deferring import DeferringStore

log = logging.getLogger(__name__)

# Objects that are copied side by side.
_PARALLEL: Final = 4
_BATCH: Final = 256


@dataclass
class Copied:
    """What a copy did so far. damaged: objects that are not what their rows say, with the reason.

    as_is: objects that are wrong, too, but do not stop the move: they are in the target as they are
    in the source, with the reason. left_behind: objects that no row knows, and unfinished uploads
    that are not whole. Objects of others, whose names are not those of a hub's, are not counted.
    proved: those whose right bytes were read in the target.
    """

    objects: int = 0
    bytes: int = 0
    already_there: int = 0
    already_there_bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    as_is: dict[str, str] = field(default_factory=dict)
    left_behind: set[str] = field(default_factory=set)
    proved: set[str] = field(default_factory=set)


class Copier:
    """Copies the objects of `source` to `target`. Not for several threads.

    is_live: the target is current, so others write to it. What is there is then not replaced.
    """

    def __init__(
        self, db: Database, source: Store, target: Store, progress: Callable[[Copied], None]
    ) -> None:
        self.copied = Copied()
        self.is_live = False
        # Objects that are in the target as they are in the source, which may still be put right.
        self._as_is: set[str] = set()
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
        self.copied.as_is.clear()
        self.copied.left_behind.clear()
        keys = self._keys()
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="move") as pool:
            while batch := list(islice(keys, _BATCH)):
                todo = [key for key in batch if key not in self.copied.proved]
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
        """Delete what only the target has and no row knows; returns the number of objects.

        While a backup is at work, their deletion is deferred: its copy of the database may still
        name what has lost its row since. See stores/deferring.py for why it is enough that the
        rows are asked first, and then for a hold.
        """
        count = 0
        strays = (i.key for i in lasting_objects(self._target) if i.key not in self._listed)
        while batch := list(islice(strays, _BATCH)):
            gone = [key for key in batch if size_in(self._source, key) is None]
            with self._db.read() as session:
                expected = expectations(session, gone)
                deferred = deferred_deletions(session, gone)
            unknown = [k for k in gone if expected[k].kind == "unknown" and k not in deferred]
            self._delete(self._target, unknown)
            count += len(unknown)
        return count

    def check_all(self) -> None:
        """Ask the target for the object of each row; what is missing becomes `damaged`."""
        keys = keys_of_rows(self._db)
        with ThreadPoolExecutor(_PARALLEL * 2, thread_name_prefix="move") as pool:
            while batch := list(islice(keys, _BATCH)):
                with self._db.read() as session:
                    expected = expectations(session, batch)
                answers = pool.map(self._is_good, batch, (expected[key] for key in batch))
                for key, is_good in zip(batch, answers, strict=True):
                    if not is_good:
                        self._note_damage(key, "the copy is missing or cut short")

    def _is_good(self, key: str, expected: Expected) -> bool:
        """Whether the target has what it needs. What was copied as it was may be needed by now."""
        if expected.kind == "needed":
            if key in self._as_is:
                return is_right(self._target, key, expected)
            return size_in(self._target, key) == expected.size
        if expected.kind == "as_is" and size_in(self._target, key) is None:
            return size_in(self._source, key) is None
        return True

    def _keys(self) -> Iterator[str]:
        """Of all objects by the source's list, and of those that rows name and it leaves out."""
        self._listed = set()
        for info in lasting_objects(self._source):
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
        except (ObjectNotFound, ShortObject, WrongBytes) as exc:
            if expected.kind == "needed":
                self._note_damage(key, str(exc))
            elif expected.kind == "awaited":
                self.copied.left_behind.add(key)

    def _copy_known(self, key: str, expected: Expected) -> None:
        size = size_in(self._source, key)
        if is_right(self._target, key, expected):
            if not self.is_live and expected.kind != "awaited":
                self._put_back(key, size, expected)
                size = expected.size
            self._note_there(key, size)
            return
        if size is None:
            if expected.kind == "needed":
                raise ObjectNotFound(f"there is no object {key}")
            return  # no object yet, or none any more
        if expected.kind != "as_is" and size != expected.size:
            raise WrongBytes(f"it has {size} bytes, and its row says {expected.size}")
        wrong = ""
        if expected.kind == "as_is" and not is_right(self._source, key, expected):
            wrong = _why_wrong(key, size, expected)
        if (wrong or expected.digest is None) and are_equal(self._source, self._target, key):
            self._note_there(key, size, wrong)
            return
        if wrong and self.is_live and size_in(self._target, key) is not None:
            self._note_copy(key, wrong)
            return  # others may put it right there
        self._put(key, size, Expected("as_is") if wrong else expected, wrong)

    def _put(self, key: str, size: int, expected: Expected, wrong: str) -> None:
        digest = expected.new_digest()
        self._target.put(key, checked(self._source, key, size, digest, expected.digest))
        failpoints.reached("move.object.after_put")
        if digest_in(self._target, key, size, expected.new_digest()) != digest.digest():
            self._target.delete(key)
            raise StoreUnavailable(f"{key} did not come back from the target as it was written")
        failpoints.reached("move.object.after_proof")
        # If it was deleted meanwhile, its row went before: see stores/moving.py. If its row is
        # there, the source has lost it.
        if size_in(self._source, key) is None and not self._is_relied_on(key):
            self._delete(self._target, [key])
            return
        with self._counting:
            self.copied.objects += 1
            self.copied.bytes += size
            self._note_copy(key, wrong)

    def _put_back(self, key: str, size: int | None, expected: Expected) -> None:
        """Give the source, which the hub still uses, the right bytes that only the target has.

        If that fails, the target keeps them all the same.
        """
        assert expected.size is not None, "its bytes are right"
        if size == expected.size and (
            expected.kind == "needed" or is_right(self._source, key, expected)
        ):
            return
        digest = expected.new_digest()
        try:
            self._source.put(
                key, checked(self._target, key, expected.size, digest, expected.digest)
            )
            if not self._is_relied_on(key):  # its row went meanwhile, and then its object
                self._delete(self._source, [key])
        except StoreError as exc:
            log.warning("key=%s only the copy has its right bytes: %s", key, exc)
        else:
            log.warning("key=%s the hub had lost it: put back from the copy", key)

    def _note_there(self, key: str, size: int | None, wrong: str = "") -> None:
        """Count an object that the target has already, once. size: in the source."""
        with self._counting:
            if size is not None and key not in self._as_is:
                self.copied.already_there += 1
                self.copied.already_there_bytes += size
            self._note_copy(key, wrong)

    def _note_copy(self, key: str, wrong: str) -> None:
        """The target has the object as the source has it. wrong: why its bytes are not right."""
        if wrong:
            self._as_is.add(key)
            self.copied.as_is[key] = wrong
        else:
            self.copied.proved.add(key)

    def _is_relied_on(self, key: str) -> bool:
        with self._db.read() as session:
            return expectations(session, [key])[key].kind in ("needed", "as_is")

    def _delete(self, store: Store, keys: list[str]) -> None:
        """Delete objects that no row needs, or let the backup do it that is at work."""
        DeferringStore(store, self._db).delete_together(keys)

    def _note_damage(self, key: str, why: str) -> None:
        """Look at the row again: the object may have been deleted, or marked, meanwhile."""
        with self._db.read() as session:
            expected = expectations(session, [key])[key]
        if expected.kind == "needed":
            if self.is_live and is_right(self._target, key, expected):
                return  # others wrote it there
        elif self._is_good(key, expected):
            return
        self.copied.damaged[key] = why


def _why_wrong(key: str, size: int, expected: Expected) -> str:
    """The reason for an object that is copied as it is, and what becomes of it."""
    why = "its bytes are not those that its row names"
    if expected.size not in (None, size):
        why = f"it has {size} bytes, and its row says {expected.size}"
    if key.startswith(COPIES):
        return f"{why}: a second copy, which `deltahub scrub` writes again from its pack"
    return f"{why}: it is marked as damaged already"

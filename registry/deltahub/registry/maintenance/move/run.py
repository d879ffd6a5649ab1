"""Moves the hub's objects: copies them, switches, copies what came in between, ends the old place.

A move that is killed at any point goes on when it is run again, and until then the hub reads and
writes as the records say: stores/places.py has their states, stores/moving.py the proof.
"""

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Final, Protocol

from deltahub.registry import failpoints
from deltahub.registry.db.columns import utc_now
from deltahub.registry.maintenance.move.compare import are_equal, is_right, size_in
from deltahub.registry.maintenance.move.copier import Copied, Copier
from deltahub.registry.maintenance.move.expected import expectations
from deltahub.registry.maintenance.object_rows import hub_objects, lasting_objects
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectInfo, Store, StoreError, StoreFull
from deltahub.registry.storage.open import open_store
from deltahub.registry.store_url import S3Location, overlap
from deltahub.registry.stores import places as records
from deltahub.registry.stores.current import OBJECTS, StoreOpener
from deltahub.registry.stores.places import FOLDER, Place, Places
from deltahub.registry.stores.write_locks import write_locks_of

# The hub is switched when a pass over all objects found no more than this left to copy.
FEW_OBJECTS: Final = 64
FEW_BYTES: Final = 64 << 20
# A hub that takes in more than a pass copies is switched after this many passes all the same.
MOST_PASSES: Final = 8
_BATCH: Final = 256
# Objects that are compared side by side before their copies in the old place are deleted.
_PARALLEL: Final = 4
_PAUSE_S: Final = 1.0


class Progress(Protocol):
    """Told how far a move is: often, with a count, and at each step. A step may be told again."""

    def __call__(self, text: str, *, is_step: bool = False) -> None: ...


def _tell_nobody(text: str, *, is_step: bool = False) -> None:
    pass


class MoveRefused(Exception):
    """The objects cannot be moved there, or not now. Nothing was changed."""

    code = "move_refused"


@dataclass
class Moved:
    """What a move did. is_switched: the hub uses the new place. is_done: it alone.

    deleted: objects that were deleted from the places that the hub has left.
    """

    source: str
    target: str
    is_switched: bool = False
    is_done: bool = False
    copied: Copied = field(default_factory=Copied)
    deleted: int = 0

    def as_dict(self) -> dict[str, object]:
        return {
            "source": self.source,
            "target": self.target,
            "is_switched": self.is_switched,
            "is_done": self.is_done,
            "objects": self.copied.objects,
            "bytes": self.copied.bytes,
            "already_there": self.copied.already_there,
            "already_there_bytes": self.copied.already_there_bytes,
            "left_behind": sorted(self.copied.left_behind),
            "damaged": dict(sorted(self.copied.damaged.items())),
            "as_is": dict(sorted(self.copied.as_is.items())),
            "deleted": self.deleted,
        }


def move(
    reg: Registry, to: str, progress: Progress = _tell_nobody, *, delete_source: bool = False
) -> Moved:
    """Move the objects to the URL `to`, or to "" for the folder. The caller holds MOVE_LOCK.

    delete_source: at the end, when no reader can need them any more, delete the objects in the
    places that the hub has left. MoveRefused; StoreError if one of the stores fails.
    """
    places = _places(reg)
    moved = Moved(places.current.name, to or FOLDER)
    if _is_same(places.current.url, to):
        moved.is_switched = moved.is_done = True
        if places.previous is not None:
            moved.source, moved.is_done = places.previous.name, False
            with _opened(reg, places.previous) as source, _opened(reg, places.current) as target:
                copier = Copier(reg.db, source, target, _counter(progress))
                _finish(reg, places.previous, copier, moved, progress)
    elif places.previous is not None:
        raise MoveRefused(
            f"the move from {places.previous.name} to {places.current.name} has not ended: run"
            f" `deltahub store copy --to {places.current.name}` first"
        )
    else:
        _copy_and_switch(reg, places, to, moved, progress)
    if moved.is_done and delete_source:
        _delete_left(reg, moved, progress)
    return moved


def give_up(reg: Registry) -> Place:
    """Stop copying to the target, whose objects stay there; MoveRefused without one."""
    places = _places(reg)
    if places.target is None:
        way = ""
        if places.previous is not None:
            way = (
                f" The hub has switched to {places.current.name}: run `deltahub store copy --to"
                f" {places.current.name}` to end the move, and then move back if need be"
            )
        raise MoveRefused(f"there is no copy to give up.{way}")
    with reg.db.write() as session:
        records.give_up(session, places.target)
    return places.target


def _copy_and_switch(
    reg: Registry, places: Places, to: str, moved: Moved, progress: Progress
) -> None:
    with _opened(reg, places.current) as source, ExitStack() as stack:
        target_place, target = _prepared(reg, places, to)
        stack.enter_context(closing(target))
        _check_room(reg, to, source, target)
        copier = Copier(reg.db, source, target, _counter(progress))
        moved.copied = copier.copied
        for _ in range(MOST_PASSES):
            before = copier.copied.bytes
            if copier.copy_all() <= FEW_OBJECTS and copier.copied.bytes - before <= FEW_BYTES:
                break
        if copier.copied.damaged:
            return
        copier.delete_strays()
        with reg.db.write() as session:  # MoveChanged while a backup holds deletions
            records.switch(session, places.current, target_place)
            failpoints.reached("move.switch.before_commit")
        failpoints.reached("move.switch.after_commit")
        moved.is_switched = True
        progress(f"the hub uses {target_place.name} now", is_step=True)
        _finish(reg, places.current, copier, moved, progress)


def _finish(
    reg: Registry, previous: Place, copier: Copier, moved: Moved, progress: Progress
) -> None:
    """Copy what came to the previous place before the switch, check every row, end the place."""
    moved.copied = copier.copied
    copier.is_live = True
    waiting = f"waiting for uploads that still write to {previous.name}"
    with closing(write_locks_of(reg.db, reg.data_dir)) as locks:
        locks.wait_for_writers(previous.mark, lambda: progress(waiting, is_step=True))
    copier.copy_all()
    copier.delete_strays()
    copier.check_all()
    if copier.copied.damaged:
        return
    with reg.db.write() as session:
        records.finish(session, previous)
        failpoints.reached("move.finish.before_commit")
    failpoints.reached("move.finish.after_commit")
    moved.is_done = True


def _prepared(reg: Registry, places: Places, to: str) -> tuple[Place, Store]:
    """The target with its record and its mark; MoveRefused if it cannot be one."""
    place = places.target
    if place is not None and not _is_same(place.url, to):
        raise MoveRefused(
            f"a copy to {place.name} has begun: go on with `deltahub store copy --to {place.name}`,"
            " or give it up with `deltahub store copy --abort`"
        )
    store = open_store(to, reg.data_dir / OBJECTS, reg.settings, reg.disk)
    try:
        mark = store.mark()
        with reg.db.read() as session:
            known = {left.mark for left in records.places_left(session)}
        if place is not None:
            known = {place.mark}
        if mark == places.current.mark:
            raise MoveRefused(f"{to or FOLDER} is where the hub's objects lie, by another name")
        lies_in = places.current.url or reg.data_dir / OBJECTS
        if overlap(to or reg.data_dir / OBJECTS, lies_in, reg.settings.s3_endpoint):
            raise MoveRefused(
                f"{to or FOLDER} and {places.current.name}, where the hub's objects lie, are one"
                " or lie one in the other: name a place apart from it, such as another prefix"
            )
        if mark is not None and mark not in known:
            raise MoveRefused(
                f"{to or FOLDER} holds the objects of another hub: name another place"
            )
        if mark is None and next(iter(store.list("")), None) is not None:
            raise MoveRefused(
                f"{to or FOLDER} holds objects that are not this hub's: name an empty place, such"
                " as another prefix"
            )
        if place is None:
            with reg.db.write() as session:
                place = records.begin(session, to, mark)
        failpoints.reached("move.begin.after_row")
        if mark is None:
            store.set_mark(place.mark)
        failpoints.reached("move.begin.after_mark")
        if store.mark() != place.mark:
            raise MoveRefused(f"another hub has begun to use {place.name}: name another place")
    except BaseException:
        store.close()
        raise
    return place, store


def _check_room(reg: Registry, to: str, source: Store, target: Store) -> None:
    """StoreFull if the folder's disk has no room for the objects."""
    if to:
        return
    there = {info.key: info.size for info in lasting_objects(target)}
    needed = sum(i.size for i in lasting_objects(source) if there.get(i.key) != i.size)
    free = reg.disk.free_bytes(reg.data_dir)
    if needed > free:
        raise StoreFull(
            f"the objects need {needed} bytes, and the disk of {reg.data_dir} has {free} free:"
            " make room and run the command again, or give the copy up with `deltahub store copy"
            " --abort`"
        )


def _delete_left(reg: Registry, moved: Moved, progress: Progress) -> None:
    """Delete the objects in the places that were left, when the readers' lease has passed."""
    with reg.db.read() as session:
        left = records.places_left(session)
    current = _places(reg).current
    with _opened(reg, current) as store:
        for place in left:
            assert place.since is not None
            due = place.since + timedelta(seconds=reg.settings.read_lease_s)
            while utc_now() < due:
                waiting = f"waiting until {due:%F %T} UTC for readers of {place.name}"
                progress(waiting, is_step=True)
                time.sleep(_PAUSE_S)
            with ExitStack() as stack:
                try:
                    old = stack.enter_context(_opened(reg, place))
                except StoreError as exc:
                    progress(f"{place.name}: nothing was deleted there ({exc})", is_step=True)
                    continue
                for count in _deleted(reg, old, store, moved.copied.proved):
                    moved.deleted += count
                    progress(f"deleted {moved.deleted} objects")


def _deleted(
    reg: Registry, old: Store, current: Store, proved: Collection[str] = ()
) -> Iterator[int]:
    """Delete the objects of a store that was left; yields the numbers of deleted objects.

    What the current store lacks although a row names it stays, what is wrong there alone, and what
    others put here. proved: objects whose bytes were read in the current store.
    """

    def is_superfluous(info: ObjectInfo) -> bool:
        key, size = info.key, size_in(current, info.key)
        if size is None:
            return expected[key].kind == "unknown"
        if expected[key].digest is None or key in proved:
            return size == info.size
        # The bytes there may have been damaged since the move, and these may be the last.
        return is_right(current, key, expected[key]) or are_equal(old, current, key)

    infos = iter(list(hub_objects(old)))
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="move") as pool:
        while batch := list(islice(infos, _BATCH)):
            with reg.db.read() as session:
                expected = expectations(session, [info.key for info in batch])
            answers = list(pool.map(is_superfluous, batch))
            keys = [info.key for info, answer in zip(batch, answers, strict=True) if answer]
            old.delete_together(keys)
            failpoints.reached("move.delete.after_objects")
            yield len(keys)


def _places(reg: Registry) -> Places:
    with reg.db.read() as session:
        places = records.read_places(session)
    assert places is not None, "a hub that was opened for writing has a store"
    return places


@contextmanager
def _opened(reg: Registry, place: Place) -> Iterator[Store]:
    with closing(StoreOpener(reg.db, reg.data_dir, reg.settings, reg.disk).place(place)) as store:
        yield store


def _is_same(url: str, other: str) -> bool:
    if not url or not other:
        return url == other
    return S3Location.parse(url) == S3Location.parse(other)


def _counter(progress: Progress) -> Callable[[Copied], None]:
    def show(copied: Copied) -> None:
        count = copied.objects + copied.already_there
        size = copied.bytes + copied.already_there_bytes
        progress(f"{count} objects, {size / 1e9:.2f} GB copied and compared")

    return show

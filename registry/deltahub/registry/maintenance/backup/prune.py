"""Removes old snapshots, and the objects that no other snapshot needs.

Nothing is deleted before the manifests of all kept snapshots were read whole, and a snapshot loses
its record first, so that one that is only half there is none.

No other backup should write in the place meanwhile. A lock ensures that in a folder, and nothing
does in a bucket. So the caller looks for others() first, and what is young stays in any case.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from deltahub.registry.db.models import utc_now
from deltahub.registry.failpoints import reached
from deltahub.registry.maintenance.backup.place import DAMAGED, OBJECTS, Place
from deltahub.registry.maintenance.backup.snapshot import (
    RECORD,
    entries,
    finished,
    is_finished,
    key_of,
    load,
    names_in,
)
from deltahub.registry.storage.keys import is_hub_key

_BATCH: Final = 1000
_DAMAGED: Final = re.compile(DAMAGED + "[0-9a-f]{64}")
# How far the clocks of this machine and of a bucket may be apart.
_CLOCKS: Final = timedelta(minutes=5)
# In a bucket, a snapshot without a record may be another machine's backup at work.
_ABANDONED: Final = timedelta(days=1)


@dataclass
class Pruned:
    """What was removed."""

    snapshots: int = 0
    objects: int = 0
    freed_bytes: int = 0


def others(place: Place, known: Collection[str]) -> list[str]:
    """The snapshots, also unfinished ones, that are not known: another backup writes here."""
    return [name for name in names_in(place.store) if name not in known]


def prune(place: Place, keep: int, began_at: datetime) -> Pruned:
    """Keep the newest `keep` snapshots; SnapshotDamaged if one of these cannot be read.

    began_at: when the caller's backup did. Objects that are younger stay. Memory: about 100 bytes
    for each object of the kept snapshots.
    """
    if keep < 1:
        raise ValueError("at least one snapshot stays")
    names = finished(place)
    needed: set[str] = set()
    for name in names[-keep:]:
        for entry in entries(place, load(place, name)):
            if entry.state == "whole":
                needed.add(OBJECTS + entry.key)
            elif entry.state == "damaged":
                needed.add(DAMAGED + entry.blake3)
    pruned = Pruned()
    before = began_at if place.is_locked else began_at - _CLOCKS
    for name in names[:-keep]:
        _remove(place, name)
        pruned.snapshots += 1
    reached("backup.prune.before_objects")
    batch: list[str] = []
    for above in (OBJECTS, DAMAGED):
        for item in place.store.list(above):
            if item.key in needed or item.modified_at >= before or not _is_copy(item.key):
                continue
            batch.append(item.key)
            pruned.objects += 1
            pruned.freed_bytes += item.size
            if len(batch) >= _BATCH:
                place.store.delete_together(batch)
                batch = []
    place.store.delete_together(batch)
    return pruned


def _is_copy(key: str) -> bool:
    """Whether a backup writes such a key. Another hub may lie inside the place."""
    name = key.removeprefix(OBJECTS)
    return is_hub_key(name) if name != key else _DAMAGED.fullmatch(key) is not None


def remove_unfinished(place: Place) -> None:
    """Remove what backups left that were cut short. Their objects stay for the next one."""
    young = utc_now() - _ABANDONED
    for name, keys in names_in(place.store).items():
        if is_finished(place.store, name):
            continue
        if place.is_locked or all(item.modified_at < young for item in keys):
            _remove(place, name)


def _remove(place: Place, name: str) -> None:
    place.store.delete(key_of(name, RECORD))
    place.store.delete_together([item.key for item in names_in(place.store).get(name, [])])

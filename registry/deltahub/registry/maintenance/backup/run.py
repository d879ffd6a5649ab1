"""Makes a backup: holds deletions off, copies the database, then each object that the copy names.

The order is what makes a backup of a hub at work whole: see stores/deferring.py for why no object
that the copied database needs can be gone before it was copied. Objects never change, so a later
backup into the same place copies only new ones.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from typing import Final

from sqlalchemy import select

from deltahub.registry.db.models import utc_now
from deltahub.registry.db.schema import head
from deltahub.registry.db.tables.stores import HubIdentity, ObjectStore
from deltahub.registry.failpoints import reached
from deltahub.registry.maintenance.backup.affected import affected_files
from deltahub.registry.maintenance.backup.copy import Copier, Kept, Listing, SourceFault
from deltahub.registry.maintenance.backup.database import DatabaseCopy, copied_database
from deltahub.registry.maintenance.backup.named import NamedObject, named_objects
from deltahub.registry.maintenance.backup.place import OBJECTS, Place, opened_to_write
from deltahub.registry.maintenance.backup.prune import Pruned, others, prune, remove_unfinished
from deltahub.registry.maintenance.backup.snapshot import (
    MANIFEST,
    RECORD,
    Entry,
    Finding,
    Part,
    Snapshot,
    check_part,
    entries,
    finished,
    key_of,
    load,
    name_of,
    names_in,
    put_compressed,
)
from deltahub.registry.maintenance.deletions import Hold, deletions_held
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreUnavailable
from deltahub.registry.storage.disk import make_durable, new_file
from deltahub.registry.storage.local import translated
from deltahub.registry.stores.current import OBJECTS as STORE_FOLDER

# Objects that are copied or read at the same time. Memory: 4 MiB each, and what the store takes.
_PARALLEL: Final = 4
_QUEUED: Final = 16
# So many unreadable objects in a row mean that the hub's store is away, not damaged.
_MOST_UNREADABLE: Final = 8

Progress = Callable[[str, int], None]


@dataclass
class Copied:
    """What became of the objects. copied, proved: bytes that were written, and only read.

    seconds: packs that are damaged or gone in the hub, whose second copies there are right.
    """

    n_objects: int = 0
    n_bytes: int = 0
    n_copied: int = 0
    copied_bytes: int = 0
    proved_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    seconds: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What a backup did. pruned: what was removed of earlier ones; None if nothing was to be."""

    snapshot: Snapshot
    copied: Copied
    is_first: bool
    pruned: Pruned | None = None
    notes: list[str] = field(default_factory=list)


def backup(
    reg: Registry,
    place_name: str,
    *,
    trust_copies: bool = False,
    keep: int | None = None,
    progress: Progress = lambda stage, n_bytes: None,
) -> Outcome:
    """Copy the hub to the place while it serves. May be killed at any moment and run again.

    trust_copies: believe the proofs of the newest earlier backup, instead of reading its copies
    again. keep: afterwards remove all but so many snapshots, unless this one has findings.
    progress(stage, bytes so far). PlaceRefused, DataFolderBusy, HoldLost, CopyDamaged,
    SnapshotDamaged, ToolMissing, StoreError, registry errors: the hub is then as it was.
    """
    hub, began_at = _identity(reg), utc_now()
    with (
        deletions_held(reg) as hold,
        opened_to_write(place_name, reg.settings, hub, _hub_places(reg)) as place,
    ):
        reached("backup.after_hold")
        earlier = finished(place)
        remove_unfinished(place)
        progress("the database", 0)
        with copied_database(reg) as database:
            moment = utc_now()
            latest = max(names_in(place.store), default="")
            while name_of(moment) <= latest:  # the same second, or the clock's
                moment += timedelta(seconds=1)
            name = name_of(moment)
            part = put_compressed(place.store, key_of(name, database.name), database.path)
            reached("backup.after_database")
            trusted = load(place, earlier[-1]) if trust_copies and earlier else None
            run = _Run(reg, place, hold, database, trusted, progress)
            manifest, copied = run.copy(key_of(name, MANIFEST))
        hold.require()
        for each in (part, manifest):  # in a bucket, another machine may have taken them away
            check_part(place.store, key_of(name, each.name), each)
        snapshot = Snapshot(
            name, hub, moment.isoformat(), version("deltahub"), head(), part, manifest,
            copied.n_objects, copied.n_bytes, tuple(copied.findings),
        )  # fmt: skip
        reached("backup.before_record")
        place.store.put(key_of(name, RECORD), [snapshot.as_json()])
        outcome = Outcome(load(place, name), copied, not earlier)
        if copied.seconds:
            outcome.notes.append(_note_of(copied.seconds))
        reached("backup.after_record")
        if keep is not None and snapshot.findings:
            outcome.notes.append("earlier backups stay, because this one has findings")
        elif keep is not None and (strangers := others(place, {*earlier, name})):
            outcome.notes.append(
                f"earlier backups stay, because another backup writes to {place_name}, or was cut"
                f" short there less than a day ago ({strangers[0]}): let one machine write to it"
            )
        elif keep is not None:
            progress("earlier backups", copied.n_bytes)
            outcome.pruned = prune(place, keep, began_at)
    return outcome


def _note_of(packs: list[str]) -> str:
    return (
        f"{len(packs)} packs are damaged or missing in the hub, the first of them {packs[0]}; their"
        " second copies are right and in the backup: `deltahub fsck --repair --read-data` puts them"
        " back"
    )


def _identity(reg: Registry) -> str:
    """The hub's name for its backups, made by its first backup."""
    with reg.db.write() as session:
        known = session.scalars(select(HubIdentity.id)).first()
        if known is None:
            known = secrets.token_hex(16)
            session.add(HubIdentity(id=known))
    return known


def _hub_places(reg: Registry) -> list[str]:
    """The folders and buckets that hold the hub, or did before a move."""
    with reg.db.read() as session:
        urls = session.scalars(select(ObjectStore.url)).all()
    folders = [str(reg.data_dir), str((reg.data_dir / STORE_FOLDER).resolve())]
    return [*folders, *(url for url in urls if url)]


class _Run:
    """The copying of one backup's objects, in order of their keys."""

    def __init__(
        self,
        reg: Registry,
        place: Place,
        hold: Hold,
        database: DatabaseCopy,
        trusted: Snapshot | None,
        progress: Progress,
    ) -> None:
        """trusted: an earlier backup, whose proofs are believed."""
        self._reg = reg
        self._place = place
        self._hold = hold
        self._database = database
        self._progress = progress
        self._copier = Copier(reg.store, place.store)
        self._earlier = iter(()) if trusted is None else entries(place, trusted)
        self._next_earlier: Entry | None = next(self._earlier, None)
        self._n_unreadable = 0

    def copy(self, manifest_key: str) -> tuple[Part, Copied]:
        """Copy all objects, then the manifest under this key."""
        copied = Copied()
        for sentence in self._database.damage:
            text = f"the hub's database is damaged: {sentence}"
            copied.findings.append(Finding("database_damaged", "database", text))
        path = self._reg.scratch / f"backup-{secrets.token_hex(8)}.manifest"
        try:
            with translated(path.name), new_file(self._reg.disk, path) as manifest:
                for named, kept in self._kept():
                    manifest.write(kept.entry.line())
                    self._add(copied, named, kept)
                make_durable(self._reg.disk, manifest)
            return put_compressed(self._place.store, manifest_key, path), copied
        finally:
            with suppress(FileNotFoundError):
                path.unlink()

    def _kept(self) -> Iterator[tuple[NamedObject, Kept]]:
        in_hub, in_place = Listing(self._reg.store), Listing(self._place.store, OBJECTS)
        waiting: deque[tuple[NamedObject, Future[Kept]]] = deque()
        pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="backup")
        try:
            for named in named_objects(self._database.session):
                while len(waiting) >= _QUEUED:
                    done, future = waiting.popleft()
                    yield done, future.result()
                sizes = in_hub.size(named.key), in_place.size(named.key)
                trusted = self._trusted(named.key)
                waiting.append((named, pool.submit(self._copier.keep, named, *sizes, trusted)))
            for done, future in waiting:
                yield done, future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _trusted(self, key: str) -> Entry | None:
        while self._next_earlier is not None and self._next_earlier.key < key:
            self._next_earlier = next(self._earlier, None)
        found = self._next_earlier
        return found if found is not None and found.key == key else None

    def _add(self, copied: Copied, named: NamedObject, kept: Kept) -> None:
        copied.n_objects += 1
        copied.n_bytes += kept.entry.size
        copied.n_copied += kept.copied > 0
        copied.copied_bytes += kept.copied
        copied.proved_bytes += kept.proved
        if kept.fault is not None:
            # A store that is away, and a backup that stood still, look like lost objects.
            self._hold.require()
            if kept.has_second:
                copied.seconds.append(named.id)
            else:
                copied.findings.append(self._finding(named, kept.fault, kept.entry))
        is_unreadable = (
            kept.fault is not None and kept.fault.kind == "unreadable" and not kept.has_second
        )
        self._n_unreadable = self._n_unreadable + 1 if is_unreadable else 0
        if self._n_unreadable >= _MOST_UNREADABLE:
            raise StoreUnavailable(
                f"the hub's store does not answer ({kept.fault}): run the backup again when it does"
            )
        self._database.stay()
        self._progress(named.kind, copied.n_bytes)

    def _finding(self, named: NamedObject, fault: SourceFault, entry: Entry) -> Finding:
        files, n_files = affected_files(self._database.session, named.kind, named.id)
        has_copy = "an earlier copy of it is whole and stays" if entry.state == "whole" else (
            "the backup has no whole copy of it"
        )  # fmt: skip
        text = f"{named.kind} {named.id} in the hub: {fault}; {has_copy}"
        return Finding(f"object_{fault.kind}", named.key, text, files, n_files)

"""Proves a snapshot without a hub: everything that a restore would read."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from deltahub.registry.maintenance.backup.copy import digest_in
from deltahub.registry.maintenance.backup.database import is_sqlite
from deltahub.registry.maintenance.backup.place import DAMAGED, OBJECTS, Place
from deltahub.registry.maintenance.backup.proofs import Blake3Proof
from deltahub.registry.maintenance.backup.snapshot import (
    Entry,
    Finding,
    Snapshot,
    SnapshotDamaged,
    check_part,
    decompressed,
    entries,
)


def place_key(entry: Entry) -> str:
    """Where the bytes of an entry lie in its place."""
    return DAMAGED + entry.blake3 if entry.state == "damaged" else OBJECTS + entry.key


def verify(
    place: Place, snapshot: Snapshot, progress: Callable[[str, int], None]
) -> Iterator[Finding]:
    """Yield what is missing or wrong in the place; SnapshotDamaged if its manifest is.

    What was damaged in the hub already when the snapshot was made is in the snapshot's own
    findings. progress(stage, bytes so far).
    """
    progress("the database", 0)
    yield from _database(place, snapshot)
    n_bytes = 0
    for entry in entries(place, snapshot):
        if entry.state == "missing":
            continue
        key = place_key(entry)
        expected = entry.blake3
        if digest_in(place.store, key, entry.size, lambda: Blake3Proof(expected)) is None:  # noqa: B023
            text = f"{key} is gone or has other bytes: the next backup copies it again"
            yield Finding("copy_damaged", key, text)
        n_bytes += entry.size
        progress("objects", n_bytes)


def _database(place: Place, snapshot: Snapshot) -> Iterator[Finding]:
    key = snapshot.key(snapshot.database)
    try:
        check_part(place.store, key, snapshot.database)
        if not is_sqlite(snapshot.database.name):
            return
        with TemporaryDirectory() as folder:
            path = Path(folder) / "database"
            with path.open("wb") as file:
                for chunk in decompressed(place.store, key, snapshot.database):
                    file.write(chunk)
            with closing(sqlite3.connect(path)) as database:
                found = [str(text) for (text,) in database.execute("PRAGMA integrity_check(20)")]
    except (SnapshotDamaged, sqlite3.Error) as exc:
        yield Finding("copy_damaged", key, f"the copy of the database: {exc}")
        return
    if found != ["ok"]:
        yield Finding("database_damaged", key, f"the copy of the database: {found[0]}")

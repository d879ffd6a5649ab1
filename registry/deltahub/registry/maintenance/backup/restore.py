"""Makes a hub of a snapshot in an empty folder, and an empty bucket if its objects go there.

The database comes last: until it is there, and the file `restore.unfinished` is not, no hub starts
in the folder. A restore that was cut short is repeated, and reads what is there already. It holds
the locks of a hub, so that neither a hub nor another restore works in the folder at the same time.
"""

import hashlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from sqlalchemy import URL, delete, inspect, make_url, select

from deltahub.registry.data_folder import RESTORE, SERVE_LOCK, WORKER_LOCK, DataFolderLock
from deltahub.registry.db import schema
from deltahub.registry.db.models import Repository
from deltahub.registry.db.session import Database
from deltahub.registry.db.tables.scrub import PackCopy, Proof
from deltahub.registry.db.tables.stores import (
    DeferredDeletion,
    DeletionHold,
    HubIdentity,
    ObjectStore,
)
from deltahub.registry.failpoints import reached
from deltahub.registry.maintenance.backup.copy import SourceFault, copy_object, digest_in
from deltahub.registry.maintenance.backup.database import is_sqlite, run_tool
from deltahub.registry.maintenance.backup.place import Place, overlap
from deltahub.registry.maintenance.backup.proofs import Blake3Proof
from deltahub.registry.maintenance.backup.snapshot import (
    Entry,
    Snapshot,
    SnapshotDamaged,
    decompressed,
    entries,
)
from deltahub.registry.maintenance.backup.verify import place_key
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import Store
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.open import open_store
from deltahub.registry.stores.current import OBJECTS, UNFINISHED
from deltahub.registry.stores.restore_marker import (
    MARKER_IN_WORK,
    RestoreMarker,
    read_marker,
    write_marker,
)
from deltahub.registry.xet.epochs import leap_epoch

_PARALLEL: Final = 4
_BATCH: Final = 64
# What an attempt leaves that was cut short before it wrote its marker.
_NO_CONTENT: Final = frozenset({SERVE_LOCK, WORKER_LOCK, MARKER_IN_WORK})


class RestoreRefused(Exception):
    """The target is not empty, or is no target for this snapshot."""

    code = "restore_refused"


@dataclass
class Restored:
    """What a restore did. missing: objects that the snapshot lacks or has only damaged."""

    snapshot: Snapshot
    n_objects: int = 0
    n_bytes: int = 0
    found_bytes: int = 0
    missing: int = 0


def restore(
    place: Place,
    snapshot: Snapshot,
    settings: Settings,
    progress: Callable[[str, int], None] = lambda stage, n_bytes: None,
) -> Restored:
    """Make a hub in settings.data_dir, whose objects go to settings.store_url.

    RestoreRefused if one of them is not empty; DataFolderBusy if another restore, or a hub, works
    in the folder; SnapshotDamaged, whose text names the object; ToolMissing, StoreError. After an
    error, run it again.
    """
    data_dir = settings.data_dir.resolve()
    url = settings.store_url or ""
    for target in (str(data_dir), url) if url else (str(data_dir),):
        if overlap(place.name, target, settings):
            raise RestoreRefused(
                f"{target} and the backups in {place.name} are one or lie one in the other: name"
                " another place with --data-dir or --store-url"
            )
    _require_kind(snapshot, settings)
    with _alone(data_dir):
        marker = _begin(data_dir, snapshot, url)
        store = open_store(url, data_dir / OBJECTS, settings, Disk())
        try:
            _claim(store, marker, url or str(data_dir / OBJECTS))
            restored = _Objects(place, store, snapshot, progress).copy()
        finally:
            store.close()
        progress("the database", restored.n_bytes)
        reached("restore.before_database")
        _place_database(place, snapshot, settings, data_dir, marker)
        reached("restore.after_database")
        with translated(str(data_dir)):
            (data_dir / UNFINISHED).unlink()
            Disk().fsync_dir(data_dir)
    return restored


def _require_kind(snapshot: Snapshot, settings: Settings) -> None:
    if is_sqlite(snapshot.database.name) != (settings.database_url is None):
        kind = "SQLite" if settings.database_url is not None else "PostgreSQL"
        way_out = (
            "leave DELTAHUB_DATABASE_URL out"
            if settings.database_url is not None
            else "name an empty one with DELTAHUB_DATABASE_URL"
        )
        raise RestoreRefused(f"snapshot {snapshot.name} is of a database of {kind}: {way_out}")


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """Make the folder if it is not there, and have it to oneself. A wrong one is not changed."""
    with translated(str(data_dir)):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_empty(data_dir)
        data_dir.chmod(0o700)
    with (
        DataFolderLock(data_dir, SERVE_LOCK, RESTORE),
        DataFolderLock(data_dir, WORKER_LOCK, RESTORE),
    ):
        yield


def _require_empty(data_dir: Path) -> None:
    """RestoreRefused unless the folder is empty, or an earlier restore began in it."""
    if (data_dir / UNFINISHED).exists():
        return
    for found in data_dir.iterdir():
        if found.name not in _NO_CONTENT:
            raise RestoreRefused(
                f"{data_dir} is not empty ({found.name}): a restore overwrites nothing. Name an"
                " empty folder with --data-dir, or move this one away"
            )


def _begin(data_dir: Path, snapshot: Snapshot, url: str) -> RestoreMarker:
    """Make the marker, or find that of an earlier attempt."""
    with translated(str(data_dir)):
        _require_empty(data_dir)  # again, because a hub may have come before the lock
    try:
        marker = read_marker(data_dir)
    except ValueError as exc:
        path = data_dir / UNFINISHED
        raise RestoreRefused(f"{path} is damaged ({exc}): delete {data_dir}") from exc
    if marker is None:
        marker = RestoreMarker(snapshot.name, snapshot.hub, url, secrets.token_hex(16))
        write_marker(data_dir, marker)
    elif (marker.snapshot, marker.hub, marker.store_url) != (snapshot.name, snapshot.hub, url):
        where = f" to {marker.store_url}" if marker.store_url else ""
        raise RestoreRefused(
            f"{data_dir} holds half of a restore of snapshot {marker.snapshot}{where}: repeat"
            " that one with --snapshot and --store-url, or delete the folder"
        )
    return marker


def _require_ours(data_dir: Path, marker: RestoreMarker) -> None:
    """RestoreRefused if the folder was deleted, and is another restore's or a hub's by now."""
    try:
        found = read_marker(data_dir)
    except ValueError:
        found = None
    if found is None or found.mark != marker.mark:
        raise RestoreRefused(
            f"{data_dir / UNFINISHED} is gone, or of another restore: this one ends, and changes"
            " nothing more there"
        )


def _claim(store: Store, marker: RestoreMarker, where: str) -> None:
    """Give the empty store the new mark; RestoreRefused if it holds something else."""
    found = store.mark()
    if found == marker.mark:
        return
    if found is not None or next(iter(store.list("")), None) is not None:
        raise RestoreRefused(
            f"{where} is not empty: name an empty bucket or prefix with --store-url"
        )
    store.set_mark(marker.mark)


class _Objects:
    """The copying of all objects of a snapshot into the new store."""

    def __init__(
        self,
        place: Place,
        store: Store,
        snapshot: Snapshot,
        progress: Callable[[str, int], None],
    ) -> None:
        self._place = place
        self._store = store
        self._progress = progress
        self._restored = Restored(snapshot)

    def copy(self) -> Restored:
        restored = self._restored
        present = (e for e in entries(self._place, restored.snapshot) if self._is_there(e))
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="restore") as pool:
            while batch := list(islice(present, _BATCH)):
                for entry, was_there in zip(batch, pool.map(self._put, batch), strict=True):
                    restored.n_objects += 1
                    restored.n_bytes += entry.size
                    restored.found_bytes += entry.size if was_there else 0
                    self._progress("objects", restored.n_bytes)
        return restored

    def _is_there(self, entry: Entry) -> bool:
        self._restored.missing += entry.state != "whole"
        return entry.state != "missing"

    def _put(self, entry: Entry) -> bool:
        """Whether the store had the object already, from an earlier attempt."""
        proof_of = partial(Blake3Proof, entry.blake3)
        if digest_in(self._store, entry.key, entry.size, proof_of) is not None:
            return True
        source_key = place_key(entry)
        try:
            copy_object(self._place.store, source_key, self._store, entry.key, entry.size, proof_of)
        except SourceFault as exc:
            raise SnapshotDamaged(
                f"{source_key} in the backup: {exc}; `deltahub backup verify` names all damage,"
                " and --snapshot names another backup"
            ) from exc
        reached("restore.after_object")
        return False


def _place_database(
    place: Place, snapshot: Snapshot, settings: Settings, data_dir: Path, marker: RestoreMarker
) -> None:
    """Put the database in place, ready for a hub with a new store."""
    path = data_dir / "restore.database"
    with translated(str(data_dir)):
        _require_ours(data_dir, marker)
        for old in data_dir.glob(path.name + "*"):
            old.unlink()
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            key = snapshot.key(snapshot.database)
            for chunk in decompressed(place.store, key, snapshot.database):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    if settings.database_url is not None:
        _fill_postgresql(settings.database_url, path, data_dir, marker)
        path.unlink()
        return
    database = Database(URL.create("sqlite", database=str(path)).render_as_string())
    try:
        _adapt(database, marker)
    finally:
        database.close()
    with translated(str(data_dir)):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")  # all of it is in the one file now
        with path.open("rb") as file:
            os.fsync(file.fileno())
        _require_ours(data_dir, marker)
        path.rename(data_dir / "deltahub.sqlite3")
        Disk().fsync_dir(data_dir)


def _fill_postgresql(url: str, dump: Path, data_dir: Path, marker: RestoreMarker) -> None:
    named = make_url(url).set(password=None).render_as_string()
    begun = replace(marker, database=hashlib.sha256(named.encode()).hexdigest())
    database = Database(url)
    try:
        with database.errors_translated(), database.read_engine.connect() as connection:
            tables = set(inspect(connection).get_table_names())
        if not tables:
            _require_ours(data_dir, marker)
            write_marker(data_dir, begun)
            run_tool(
                "pg_restore", url, "--exit-on-error", "--single-transaction", "--no-owner",
                "--no-privileges", str(dump),
            )  # fmt: skip
        elif not _is_filled(database, tables, marker, is_begun=marker == begun):
            raise RestoreRefused(
                "the database of DELTAHUB_DATABASE_URL has tables already: name an empty one"
            )
        _adapt(database, marker)
    finally:
        database.close()


def _is_filled(
    database: Database, tables: set[str], marker: RestoreMarker, *, is_begun: bool
) -> bool:
    """Whether an earlier attempt of this restore has filled the database, which is one step."""
    if not {ObjectStore.__tablename__, HubIdentity.__tablename__} <= tables:
        return False
    with database.read() as session:
        mark = session.scalar(select(ObjectStore.mark).where(ObjectStore.state == "current"))
        hub = session.scalar(select(HubIdentity.id))
    return mark == marker.mark or (is_begun and hub == marker.hub)


def _adapt(database: Database, marker: RestoreMarker) -> None:
    """Upgrade the schema; name the new store; make clients of Xet forget what they have sent."""
    schema.upgrade(database)
    with database.write() as session:
        session.execute(delete(ObjectStore))
        session.add(ObjectStore(mark=marker.mark, url=marker.store_url, state="current"))
        # The lost hub may come back: its backups and those of this one stay apart.
        session.execute(delete(HubIdentity))
        session.execute(delete(DeletionHold))
        session.execute(delete(DeferredDeletion))
        # Second copies are not in a backup; the next scrub makes them, and proves the new store.
        session.execute(delete(PackCopy))
        session.execute(delete(Proof))
        for repository in session.scalars(select(Repository.id)).all():
            leap_epoch(session, repository)

"""Puts the copied database in place, as that of a new hub with another store."""

import hashlib
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sqlalchemy import URL, delete, inspect, make_url, select

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
from deltahub.registry.maintenance.backup.database import run_tool
from deltahub.registry.maintenance.backup.place import Place
from deltahub.registry.maintenance.backup.snapshot import Snapshot, decompressed
from deltahub.registry.maintenance.restore.target import RestoreRefused, require_ours
from deltahub.registry.settings import Settings
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated
from deltahub.registry.stores.restore_marker import RestoreMarker, write_marker
from deltahub.registry.xet.epochs import leap_epoch


def place_database(
    place: Place, snapshot: Snapshot, settings: Settings, data_dir: Path, marker: RestoreMarker
) -> None:
    """Put the database in place, ready for a hub with a new store."""
    path = data_dir / "restore.database"
    with translated(str(data_dir)):
        require_ours(data_dir, marker)
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
        require_ours(data_dir, marker)
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
            require_ours(data_dir, marker)
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

"""Puts the copied database in place, as that of a new hub with another store."""

import hashlib
import os
import re
import secrets
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sqlalchemy import URL, delete, inspect, make_url, select

from deltahub.registry.db import schema
from deltahub.registry.db.models import Repository
from deltahub.registry.db.session import Database
from deltahub.registry.db.tables.scrub import PackCopy, Proof
from deltahub.registry.db.tables.spool import SpooledUpload
from deltahub.registry.db.tables.stores import (
    DeferredDeletion,
    DeletionHold,
    HubIdentity,
    ObjectStore,
)
from deltahub.registry.maintenance.backup.database import is_sqlite, run_tool, tool_output
from deltahub.registry.maintenance.backup.place import Place
from deltahub.registry.maintenance.backup.snapshot import Snapshot, decompressed
from deltahub.registry.maintenance.restore.target import LOOKED_AT, RestoreRefused, require_ours
from deltahub.registry.settings import Settings
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated
from deltahub.registry.stores.restore_marker import RestoreMarker, write_marker
from deltahub.registry.xet.epochs import leap_epoch


def lost_places(place: Place, snapshot: Snapshot, data_dir: Path) -> list[str]:
    """URLs of the buckets that hold the objects of the hub in the backup, or did.

    The copy of the database is unpacked in the data folder, which has room for it.
    """
    path = data_dir / f"{LOOKED_AT}{secrets.token_hex(8)}"
    try:
        _unpack(place, snapshot, path)
        if is_sqlite(snapshot.database.name):
            with closing(sqlite3.connect(path)) as connection:
                urls = [str(url) for (url,) in connection.execute("SELECT url FROM object_stores")]
        else:
            urls = _urls_in_dump(path)
        return [url for url in urls if url]
    except sqlite3.DatabaseError:
        return []  # an old release's database has no such table, and a damaged one tells nothing
    finally:
        for file in data_dir.glob(path.name + "*"):
            file.unlink(missing_ok=True)


def _urls_in_dump(dump: Path) -> list[str]:
    text = tool_output(
        "pg_restore", "--data-only", f"--table={ObjectStore.__tablename__}", "--file=-", str(dump)
    )
    found = re.search(r"^COPY [^\n]*\(([^)]*)\) FROM stdin;\n(.*?)^\\\.$", text, re.DOTALL | re.M)
    if found is None:
        return []
    column = found[1].split(", ").index("url")
    return [line.split("\t")[column] for line in found[2].splitlines()]


def _unpack(place: Place, snapshot: Snapshot, path: Path) -> None:
    with translated(str(path)):
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            key = snapshot.key(snapshot.database)
            for chunk in decompressed(place.store, key, snapshot.database):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())


def place_database(
    place: Place, snapshot: Snapshot, settings: Settings, data_dir: Path, marker: RestoreMarker
) -> None:
    """Put the database in place, ready for a hub with a new store."""
    path = data_dir / "restore.database"
    with translated(str(data_dir)):
        require_ours(data_dir, marker)
        for old in [*data_dir.glob(path.name + "*"), *data_dir.glob(LOOKED_AT + "*")]:
            old.unlink()
    _unpack(place, snapshot, path)
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


def require_empty_database(url: str) -> None:
    """RestoreRefused if the database of PostgreSQL has tables; a registry error if it is away."""
    with closing(Database(url)) as database:
        if _tables(database):
            raise _not_empty()


def _tables(database: Database) -> set[str]:
    with database.errors_translated(), database.read_engine.connect() as connection:
        return set(inspect(connection).get_table_names())


def _not_empty() -> RestoreRefused:
    return RestoreRefused(
        "the database of DELTAHUB_DATABASE_URL has tables already: name an empty one"
    )


def _fill_postgresql(url: str, dump: Path, data_dir: Path, marker: RestoreMarker) -> None:
    named = make_url(url).set(password=None).render_as_string()
    begun = replace(marker, database=hashlib.sha256(named.encode()).hexdigest())
    database = Database(url)
    try:
        tables = _tables(database)
        if not tables:
            require_ours(data_dir, marker)
            write_marker(data_dir, begun)
            run_tool(
                "pg_restore", url, "--exit-on-error", "--single-transaction", "--no-owner",
                "--no-privileges", str(dump),
            )  # fmt: skip
        elif not _is_filled(database, tables, marker, is_begun=marker == begun):
            raise _not_empty()
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
        # Unfinished uploads are not in a backup, either: their clients begin again.
        session.execute(delete(SpooledUpload))
        # Second copies are not in a backup; the next scrub makes them, and proves the new store.
        session.execute(delete(PackCopy))
        session.execute(delete(Proof))
        for repository in session.scalars(select(Repository.id)).all():
            leap_epoch(session, repository)

"""An open data folder: its settings, database, object store and spool of uploads."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.db import schema
from deltahub.registry.db.measured.database import measure
from deltahub.registry.db.opening.moved import refuse_moved
from deltahub.registry.db.session import Database
from deltahub.registry.errors import DataLost
from deltahub.registry.measures import Measures
from deltahub.registry.settings import Settings
from deltahub.registry.spools.base import Spool
from deltahub.registry.spools.bucket.spool import BucketSpool
from deltahub.registry.spools.by_place import SpoolByPlace
from deltahub.registry.spools.local import LocalSpool
from deltahub.registry.storage.cache.object_cache import ObjectCache
from deltahub.registry.storage.disk import Disk, Folders
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.private_files import create_private, make_private
from deltahub.registry.stores.current import OBJECTS, StoreOpener, refuse_half_restored
from deltahub.registry.stores.deferring import DeferringStore

CACHE = "cache"
SPOOL = "spool"

# How the scratch folders of jobs begin.
JOB_FOLDER: Final = "job-"


class Registry:
    """An open hub, passed to every function of the registry. Safe to share between threads.

    store    objects: packs, xorbs and complete uploads
    cache    copies of packs that lie in a bucket
    spool    uploads that are still being received; spool_folder: those of this machine
    scratch  a local folder for temporary files, such as packs while they are written
    measures what this process has counted, for monitoring
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: DeferringStore,
        disk: Disk,
        cache: ObjectCache | None = None,
        measures: Measures | None = None,
    ) -> None:
        self.settings = settings
        self.data_dir = settings.data_dir.resolve()
        self.db = database
        self.store = store
        self.disk = disk
        self.cache = cache
        self.measures = measures or Measures()
        self.scratch = self.data_dir / "scratch"
        self.spool_folder = self.data_dir / SPOOL
        self.spool = self._open_spool()
        # Disk space that a cache of this process gives back when the disk gets full, in bytes.
        self.reclaimable_bytes: Callable[[], int] = lambda: 0

    def job_folder(self, job_id: str) -> Path:
        """Where a job may write local files. Whoever runs the job makes and deletes it."""
        return self.scratch / f"{JOB_FOLDER}{job_id}"

    @classmethod
    def open(cls, settings: Settings, disk: Disk | None = None) -> Self:
        """The registry in settings.data_dir. Creates the folder and migrates the database.

        Files with secrets become readable by this user alone.

        Several processes may open one folder at once. SchemaTooNew if a newer release wrote it;
        StoreError if the folder cannot be created; DataLost if the database is damaged;
        Unavailable if it was moved to PostgreSQL and the settings name the old one.
        """
        disk = disk if disk is not None else Disk()
        data_dir = settings.data_dir.resolve()
        refuse_half_restored(data_dir)
        refuse_moved(settings.effective_database_url)
        with translated(str(data_dir)):
            data_dir.parent.mkdir(parents=True, exist_ok=True)
            folders = Folders(disk, data_dir)
            for folder in ("scratch", SPOOL, OBJECTS):
                folders.ensure(data_dir / folder)
        database = Database(settings.effective_database_url)
        measures = Measures()
        measure(database, measures)
        cache = ObjectCache(data_dir / CACHE, settings.store_cache_bytes, disk)
        opener = StoreOpener(database, data_dir, settings, disk, cache, measures=measures)
        try:
            with schema_lock(data_dir):
                refuse_moved(database.url)  # again: a move may have held the lock until now
                if database.path is not None:
                    with translated(str(database.path)):
                        create_private(database.path)
                make_private(data_dir, database.path)
                schema.upgrade(database)
                store = opener.current()
            return cls(settings, database, store, disk, cache, measures)
        except BaseException:
            database.close()
            raise

    @classmethod
    def open_to_read(cls, settings: Settings, *, schema_checked: bool = True) -> Self:
        """The registry in an existing folder, which is not changed and may be read-only.

        schema_checked: SchemaTooNew or SchemaTooOld if another release wrote the database; without
        it the caller checks. Unavailable if the database cannot be read.
        """
        disk, data_dir = Disk(), settings.data_dir.resolve()
        refuse_half_restored(data_dir)
        refuse_moved(settings.effective_database_url)
        database = Database(settings.effective_database_url, is_read_only=True)
        try:
            if schema_checked:
                schema.require_head(database)
            opener = StoreOpener(database, data_dir, settings, disk, is_read_only=True)
            try:
                store = opener.current()
            except (DataLost, SQLAlchemyError):
                if schema_checked:
                    raise
                store = opener.of_damaged_database()
            return cls(settings, database, store, disk)
        except BaseException:
            database.close()
            raise

    def _open_spool(self) -> Spool:
        local = LocalSpool(self.spool_folder, self.disk, self.store)
        if self.db.is_sqlite:
            return local  # all of its processes share one folder
        bucket = BucketSpool(self.db, self.store, self.disk, self.scratch)
        return SpoolByPlace(self.store, local, bucket)

    def close(self) -> None:
        self.spool.close()
        self.store.close()
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def schema_lock(data_dir: Path) -> Iterator[None]:
    """A context that one process of all that open the data folder for writing has at a time.

    The database's schema changes only in it. The others wait.
    """
    path = data_dir / "migrate.lock"
    with translated(str(path)):
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

"""An open data folder: its settings, database, object store and spool of uploads."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import exists, or_, select

from deltahub.registry.db import schema
from deltahub.registry.db.models import Landing, Pack
from deltahub.registry.db.session import Database
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import Store, StoreUnavailable
from deltahub.registry.storage.disk import Disk, Folders
from deltahub.registry.storage.local import FileStore, is_made, translated
from deltahub.registry.storage.private_files import create_private, make_private
from deltahub.registry.storage.spool import Spool


class Registry:
    """An open hub, passed to every function of the registry. Safe to share between threads.

    store    objects: packs, xorbs and complete uploads
    spool    uploads that are still being received
    scratch  a local folder for temporary files, such as packs while they are written
    """

    def __init__(
        self, settings: Settings, database: Database, store: Store, spool: Spool, disk: Disk
    ) -> None:
        self.settings = settings
        self.data_dir = settings.data_dir.resolve()
        self.db = database
        self.store = store
        self.spool = spool
        self.disk = disk
        self.scratch = self.data_dir / "scratch"
        # Disk space that a cache of this process gives back when the disk gets full, in bytes.
        self.reclaimable_bytes: Callable[[], int] = lambda: 0

    @classmethod
    def open(cls, settings: Settings, disk: Disk | None = None) -> Self:
        """The registry in settings.data_dir. Creates the folder and migrates the database.

        Files with secrets become readable by this user alone.

        Several processes may open one folder at once. SchemaTooNew if a newer release wrote it;
        StoreError if the folder cannot be created; DataLost if the database is damaged.
        """
        disk = disk if disk is not None else Disk()
        data_dir = settings.data_dir.resolve()
        with translated(str(data_dir)):
            data_dir.parent.mkdir(parents=True, exist_ok=True)
            folders = Folders(disk, data_dir)
            for folder in ("scratch", "spool", "objects"):
                folders.ensure(data_dir / folder)
        database = Database(settings.effective_database_url)
        if database.path is not None:
            with translated(str(database.path)):
                create_private(database.path)
        make_private(data_dir, database.path)
        try:
            with _locked(data_dir / "migrate.lock"):
                schema.upgrade(database)
            _refuse_other_store(database, data_dir / "objects")
            store = FileStore(data_dir / "objects", disk)
            return cls(settings, database, store, Spool(data_dir / "spool", disk), disk)
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
        database = Database(settings.effective_database_url, is_read_only=True)
        try:
            if schema_checked:
                schema.require_head(database)
            store = FileStore(data_dir / "objects", disk, is_read_only=True)
            return cls(settings, database, store, Spool(data_dir / "spool", disk), disk)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        self.spool.close()
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _refuse_other_store(database: Database, objects: Path) -> None:
    """StoreUnavailable if the hub has objects, and this folder was never a store.

    Everything in it would look lost, and new objects would be hidden when its disk comes back.
    """
    if is_made(objects):
        return
    with database.read() as session:
        uploads = select(Landing.id).where(Landing.state == "complete")
        is_used = session.scalar(select(or_(exists(select(Pack.id)), exists(uploads))))
    if is_used:
        raise StoreUnavailable(
            f"the hub's objects are not in {objects}: is its disk mounted? If this is a copy of a"
            f" hub without its objects, make the folder {objects / '.tmp'}"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with translated(str(path)):
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

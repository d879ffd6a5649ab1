"""What processes that were killed have left: local files, puts, and objects of the spool."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from stat import S_ISREG
from typing import Final

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from deltahub.registry.db.models import Landing
from deltahub.registry.db.tables.spool import SpooledUpload
from deltahub.registry.maintenance.object_rows import is_known
from deltahub.registry.registry import JOB_FOLDER, Registry
from deltahub.registry.storage.base import Store
from deltahub.registry.storage.keys import SPOOL, is_hub_key

# A younger local file, object of the spool or unfinished put may belong to a running process
# (docs/cli.md).
LEFTOVER_AGE: Final = timedelta(days=1)


def is_spooled(session: Session, put_id: str) -> bool:
    """Whether an unfinished upload goes on with this put."""
    query = select(exists().where(SpooledUpload.multipart_id == put_id))
    return bool(session.scalar(query))


def unowned_tails(
    session: Session, store: Store, age: timedelta
) -> Iterator[tuple[str, int, datetime]]:
    """(key, bytes, due time) of objects of the spool that no row names.

    The row comes after the object, and no later row names an object that was written a day ago.
    """
    for info in store.list(SPOOL):
        if is_hub_key(info.key) and not is_known(session, info.key):
            yield info.key, info.size, info.modified_at + age


def local_leftovers(
    session: Session, reg: Registry, age: timedelta
) -> Iterator[tuple[str, int, datetime]]:
    """(name, bytes, due time) of scratch files, jobs' folders, and spool files without an upload.

    Old files were left by a dead process. Young files may belong to a running one.
    """
    scratch = sorted(reg.scratch.iterdir()) if reg.scratch.is_dir() else []
    spooled = sorted(reg.spool_folder.iterdir()) if reg.spool_folder.is_dir() else []
    orphans = [path for path in spooled if session.get(Landing, path.name) is None]
    for path in (*scratch, *orphans):
        if path.is_dir() and not path.name.startswith(JOB_FOLDER):
            continue
        try:
            files = [each.stat() for each in (path, *path.rglob("*"))]
        except FileNotFoundError:
            continue  # its owner has just removed it
        size = sum(each.st_size for each in files if S_ISREG(each.st_mode))
        written_at = max(each.st_mtime for each in files)
        name = f"{path.parent.name}/{path.name}"
        # A backup may run while the hub is stopped.
        waits = max(age, LEFTOVER_AGE) if path.name.startswith("backup-") else age
        yield name, size, datetime.fromtimestamp(written_at, UTC) + waits

"""Files with secrets: only the hub's own user may read them, whatever the umask and their age.

The database has names and hashes of tokens, `signing.key` makes links that need no token, and the
job engine's file has the arguments of jobs.
"""

import glob
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE, S_ISDIR
from typing import Final

log = logging.getLogger(__name__)

# In the data folder. The stars stand for SQLite's files beside a database, and for copies of it.
_SECRETS: Final = ("deltahub.sqlite3*", "jobs.sqlite*", "signing.key*")
_FOLDERS: Final = ("objects", "spool", "scratch", "cache")
_OF_OTHERS: Final = 0o077


def create_private(path: Path) -> None:
    """Make an empty file for its owner alone, unless there is one. OSError.

    SQLite takes an empty file for a new database, and gives its own files beside it the same mode.
    """
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    try:
        os.fchmod(fd, 0o600)  # the umask may have taken away even this
    finally:
        os.close(fd)


def make_private(data_dir: Path, database: Path | None) -> None:
    """Take the rights of others from all secrets of a data folder; log where that fails."""
    for path in _secrets(data_dir, database):
        try:
            fault = _restrict(path)
        except FileNotFoundError:
            continue  # SQLite removes its files when the last connection ends
        if fault:
            log.warning(
                "other users of this machine may read %s, and %s: give it to this user with chown, "
                "or run `chmod go= %s` as its owner",
                path, fault, path,
            )  # fmt: skip


def _secrets(data_dir: Path, database: Path | None) -> Iterator[Path]:
    for pattern in _SECRETS:
        yield from sorted(data_dir.glob(pattern))
    yield from (data_dir / name for name in _FOLDERS)
    if database is not None and database.parent != data_dir:
        yield from sorted(database.parent.glob(glob.escape(database.name) + "*"))


def _restrict(path: Path) -> str:
    """Take the rights of others; why that failed, or "" if they have none any more."""
    stat = path.stat()
    if not S_IMODE(stat.st_mode) & _OF_OTHERS:
        return ""
    reason = "the file system keeps no other mode"
    try:
        path.chmod(0o700 if S_ISDIR(stat.st_mode) else 0o600)
    except FileNotFoundError:
        raise
    except OSError as exc:
        reason = f"its mode {S_IMODE(stat.st_mode):04o} cannot be changed ({exc.strerror})"
    return reason if S_IMODE(path.stat().st_mode) & _OF_OTHERS else ""

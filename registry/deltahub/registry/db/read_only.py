"""How a command that changes nothing opens a SQLite file, also on read-only media or a full disk.

SQLite reads a database in WAL mode with the help of two files beside it: the log of commits that
are not in the database yet (-wal), and an index of that log (-shm). It has to create them if they
are not there, also for reading.
"""

import os
from pathlib import Path
from typing import Final
from urllib.parse import quote

from deltahub.registry.db.failures import write_failure
from deltahub.registry.errors import Unavailable

# The least size of the index. On a full disk SQLite leaves a shorter one.
_INDEX_BYTES: Final = 32 << 10


def uri_to_read(path: Path) -> str:
    """The URI to open the file with; Unavailable if it cannot be read as it lies there."""
    log, index = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
    for file in (path, log, index):
        _check_readable(file)
    # A full disk, a read-only mount or the lack of a right: SQLite can create nothing there.
    can_create = write_failure(path.parent) is None
    if not log.exists():
        # A connection that may write removes the two files when it ends. Without a log it writes
        # nothing else.
        return _uri(path, "mode=rw" if can_create and os.access(path, os.W_OK) else "immutable=1")
    if can_create or (index.exists() and index.stat().st_size >= _INDEX_BYTES):
        return _uri(path, "mode=ro")
    if log.stat().st_size == 0:
        return _uri(path, "immutable=1")
    raise Unavailable(
        f"{log} holds commits that are not in the database yet, and SQLite can only read them if "
        f"it may create {index.name} beside it, but {path.parent} cannot be written: copy both "
        "files to a folder that can be written, or make this one writable"
    )


def _check_readable(file: Path) -> None:
    try:
        with file.open("rb"):
            pass
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise Unavailable(f"{file} cannot be read: {exc.strerror}") from exc


def _uri(path: Path, how: str) -> str:
    return f"file:{quote(str(path))}?{how}"

"""The index of files and tensors on this machine: a cache that may always be deleted."""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltahub.client.local.paths import cache_folder

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE files (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL,
    sha256 TEXT,
    has_tensors INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE tensors (
    file_id INTEGER NOT NULL REFERENCES files(id) ON DELETE CASCADE,
    start INTEGER NOT NULL,
    tensor BLOB NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (file_id, start)
) WITHOUT ROWID;
CREATE INDEX tensors_by_id ON tensors(tensor);
"""
# SQLite takes at most 32,766 values in one statement.
_BATCH = 10_000
# How long one process waits for another's lock.
_PATIENCE_S = 60


@dataclass(frozen=True)
class Stamp:
    """A file's size, time and inode: while they are equal, its hashes are valid."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, stat: os.stat_result) -> "Stamp":
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ino)


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor and the place of its bytes in a file."""

    tensor: bytes
    start: int
    size: int


@dataclass(frozen=True)
class FoundTensor:
    """A tensor on this machine. Its bytes may have changed, so users must verify the id."""

    path: str
    start: int
    size: int


class LocalIndex:
    """Maps tensor ids to files and offsets, and files to SHA-256, while files are unchanged.

    Safe to use from several threads and several processes.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._db = _open(path)

    @classmethod
    def default(cls) -> "LocalIndex":
        return cls(cache_folder() / "tensors.sqlite")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def sha256_of(self, path: Path, stamp: Stamp) -> str | None:
        """The file's SHA-256 if it was hashed and has not changed since, else None."""
        row = self._file(path, stamp)
        return row[1] if row else None

    def tensors_of(self, path: Path, stamp: Stamp) -> list[PlacedTensor] | None:
        """The file's tensors by offset; None if the file is not known or has changed."""
        with self._lock:
            row = self._file(path, stamp)
            if row is None or not row[2]:
                return None
            rows = self._db.execute(
                "SELECT tensor, start, size FROM tensors WHERE file_id = ? ORDER BY start",
                (row[0],),
            )
            return [PlacedTensor(*each) for each in rows]

    def remember(
        self,
        path: Path,
        stamp: Stamp,
        *,
        sha256: str | None = None,
        tensors: Sequence[PlacedTensor] | None = None,
    ) -> None:
        """Adds a file's hashes. Drops the rows of an earlier version of the file."""
        with self._writing() as db:
            if self._file(path, stamp) is None:
                db.execute("DELETE FROM files WHERE path = ?", (str(path),))
                db.execute(
                    "INSERT INTO files (path, size, mtime_ns, inode) VALUES (?, ?, ?, ?)",
                    (str(path), stamp.size, stamp.mtime_ns, stamp.inode),
                )
            row = self._file(path, stamp)
            assert row is not None
            if sha256 is not None:
                db.execute("UPDATE files SET sha256 = ? WHERE id = ?", (sha256, row[0]))
            if tensors is not None:
                db.execute("DELETE FROM tensors WHERE file_id = ?", (row[0],))
                db.executemany(
                    "INSERT OR REPLACE INTO tensors VALUES (?, ?, ?, ?)",
                    ((row[0], each.start, each.tensor, each.size) for each in tensors),
                )
                db.execute("UPDATE files SET has_tensors = 1 WHERE id = ?", (row[0],))

    def find(self, tensors: Iterable[bytes]) -> dict[bytes, FoundTensor]:
        """The places of the tensors that lie in unchanged files. Drops rows of changed files."""
        wanted = list(dict.fromkeys(tensors))
        found: dict[bytes, FoundTensor] = {}
        unchanged: dict[str, bool] = {}
        for i in range(0, len(wanted), _BATCH):
            part = wanted[i : i + _BATCH]
            marks = ",".join("?" * len(part))
            with self._lock:
                rows = self._db.execute(
                    "SELECT t.tensor, f.path, t.start, t.size, f.size, f.mtime_ns, f.inode"
                    f" FROM tensors t JOIN files f ON f.id = t.file_id WHERE t.tensor IN ({marks})",
                    part,
                ).fetchall()
            for tensor, path, start, size, *stamp in rows:
                if tensor in found:
                    continue
                if path not in unchanged:
                    unchanged[path] = _is_unchanged(path, Stamp(*stamp))
                if unchanged[path]:
                    found[tensor] = FoundTensor(path, start, size)
        self._forget_all(path for path, is_unchanged in unchanged.items() if not is_unchanged)
        return found

    def find_files(self, sha256: str) -> list[str]:
        """Unchanged files with this SHA-256. Drops rows of changed files."""
        with self._lock:
            rows = self._db.execute(
                "SELECT path, size, mtime_ns, inode FROM files WHERE sha256 = ?", (sha256,)
            ).fetchall()
        unchanged = {path: _is_unchanged(path, Stamp(*stamp)) for path, *stamp in rows}
        self._forget_all(path for path, is_unchanged in unchanged.items() if not is_unchanged)
        return [path for path, is_unchanged in unchanged.items() if is_unchanged]

    def forget(self, path: str | Path) -> None:
        """Drops a file's rows, e.g. because its bytes do not have the recorded hash."""
        self._forget_all([str(path)])

    def _forget_all(self, paths: Iterable[str]) -> None:
        stale = [(path,) for path in paths]
        if stale:
            with self._writing() as db:
                db.executemany("DELETE FROM files WHERE path = ?", stale)

    def _file(self, path: Path, stamp: Stamp) -> tuple[int, str | None, int] | None:
        with self._lock:
            row: tuple[int, str | None, int] | None = self._db.execute(
                "SELECT id, sha256, has_tensors FROM files"
                " WHERE path = ? AND size = ? AND mtime_ns = ? AND inode = ?",
                (str(path), stamp.size, stamp.mtime_ns, stamp.inode),
            ).fetchone()
            return row

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _is_unchanged(path: str, stamp: Stamp) -> bool:
    try:
        return Stamp.of(os.stat(path)) == stamp
    except OSError:
        return False


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _connect(path)
    except sqlite3.DatabaseError as exc:
        if isinstance(exc, sqlite3.OperationalError):
            raise
        # Damaged, e.g. by a full disk. Start an empty index, because every hash can be recomputed.
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _connect(path)


def _use_wal(db: sqlite3.Connection) -> None:
    """For the change to WAL SQLite does not wait until others have made it: it fails at once."""
    ends = time.monotonic() + _PATIENCE_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
            time.sleep(0.01)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        _use_wal(db)
        # A lost last transaction costs only a hash.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("BEGIN IMMEDIATE")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != _SCHEMA_VERSION:
            for table in ("tensors", "files"):
                db.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        # Outside the schema, so that indexes without it keep their hashes.
        db.execute("CREATE INDEX IF NOT EXISTS files_by_sha256 ON files(sha256)")
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db

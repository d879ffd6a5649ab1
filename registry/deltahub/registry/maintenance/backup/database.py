"""A consistent copy of the database while the hub serves: SQLite's online backup, or pg_dump."""

import os
import secrets
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url

from deltahub.registry.db.failures import BUSY_TIMEOUT_S
from deltahub.registry.db.integrity import file_damage
from deltahub.registry.db.session import Database, ReadSession
from deltahub.registry.registry import Registry
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.private_files import create_private

SQLITE_NAME: Final = "database.sqlite3.zst"
POSTGRESQL_NAME: Final = "database.pg_dump.zst"
# `gc` takes a scratch file for a leftover when it is a day old.
_TOUCH_S: Final = 600.0
_MAX_DAMAGE: Final = 20


class ToolMissing(Exception):
    """A program of PostgreSQL that the backup needs is not on this machine, or failed."""

    code = "tool_missing"


@dataclass
class DatabaseCopy:
    """A copy in a scratch file. session: reads exactly what the copy has.

    damage: sentences about what is wrong in it.
    """

    path: Path
    name: str
    session: ReadSession
    damage: list[str]
    _touched_at: float = 0.0

    def stay(self) -> None:
        """Show that the scratch file is in use. Call it now and then."""
        if time.monotonic() > self._touched_at + _TOUCH_S:
            self._touched_at = time.monotonic()
            with translated(self.path.name):
                os.utime(self.path)


@contextmanager
def copied_database(reg: Registry) -> Iterator[DatabaseCopy]:
    """A copy of the hub's database, deleted at the end; ToolMissing, registry errors."""
    path = reg.scratch / f"backup-{secrets.token_hex(8)}"
    with translated(path.name):
        create_private(path)
    try:
        if reg.db.path is not None:
            with _sqlite(reg.db, reg.db.path, path) as copy:
                yield copy
        else:
            with _postgresql(reg.db, path) as copy:
                yield copy
    finally:
        for file in reg.scratch.glob(path.name + "*"):
            with suppress(FileNotFoundError):
                file.unlink()


@contextmanager
def _sqlite(database: Database, source: Path, path: Path) -> Iterator[DatabaseCopy]:
    # All pages in one step: one transaction that reads, beside which the hub goes on writing.
    with (
        database.errors_translated(),
        closing(sqlite3.connect(source, timeout=BUSY_TIMEOUT_S)) as original,
        closing(sqlite3.connect(path)) as target,
    ):
        original.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    url = URL.create("sqlite", database=str(path)).render_as_string()
    copy = Database(url, is_read_only=True)
    try:
        damage = file_damage(copy, most=_MAX_DAMAGE)
        with copy.read() as session:
            yield DatabaseCopy(path, SQLITE_NAME, session, damage)
    finally:
        copy.close()


@contextmanager
def _postgresql(database: Database, path: Path) -> Iterator[DatabaseCopy]:
    """One transaction exports its snapshot to pg_dump, and later reads the objects' names."""
    with database.read() as session:
        exported = session.connection().exec_driver_sql("SELECT pg_export_snapshot()").scalar()
        run_tool(
            "pg_dump", database.url, "--format=custom", "--compress=0", "--no-owner",
            "--no-privileges", f"--snapshot={exported}", f"--file={path}",
        )  # fmt: skip
        yield DatabaseCopy(path, POSTGRESQL_NAME, session, [])


def run_tool(program: str, url: str, *arguments: str) -> None:
    """Run pg_dump or pg_restore on the database of an SQLAlchemy URL; ToolMissing."""
    from psycopg.conninfo import make_conninfo

    parsed = make_url(url)
    _, given = parsed.get_dialect()().create_connect_args(parsed)
    password = given.pop("password", None)
    tool_output(program, *arguments, f"--dbname={make_conninfo(**given)}", password=password)


def tool_output(program: str, *arguments: str, password: str | None = None) -> str:
    """What a program of PostgreSQL prints; ToolMissing."""
    found = shutil.which(program)
    if found is None:
        raise ToolMissing(
            f"the hub's database is on PostgreSQL, and {program} is not on this machine: install"
            " PostgreSQL's client programs, of the server's version or a newer one"
        )
    environment = {**os.environ, **({"PGPASSWORD": password} if password else {})}
    done = subprocess.run(
        [found, *arguments],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ToolMissing(f"{program} failed: {lines[-1][:500]}")
    return done.stdout


def is_sqlite(name: str) -> bool:
    """Whether a snapshot's database of this name is SQLite's."""
    return name == SQLITE_NAME

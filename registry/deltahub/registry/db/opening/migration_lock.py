"""Processes that start at once on one PostgreSQL database migrate it one after another."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from deltahub.registry.db.session import Database
from deltahub.registry.errors import Unavailable

log = logging.getLogger(__name__)

# The migrations of a hub with millions of rows take minutes.
WAIT_S: Final = 600.0
# Key of the advisory lock: "migrate!" in ASCII.
_KEY: Final = int.from_bytes(b"migrate!", "big")
_LOCK_NOT_AVAILABLE: Final = "55P03"
_MAX_NAME: Final = 63  # PostgreSQL cuts off the rest of an application's name

_HOLDER: Final = text("""
SELECT a.pid, a.application_name, a.usename, host(a.client_addr) AS address, a.xact_start
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint = :high AND l.objid::bigint = :low
""")


@contextmanager
def migration_lock(database: Database) -> Iterator[None]:
    """A context that one process of all that use this PostgreSQL database has at a time.

    The others wait for up to WAIT_S seconds; then Unavailable, which names the holder. For SQLite
    it does nothing: a lock in the data folder keeps the processes apart.
    """
    if database.is_sqlite:
        yield
        return
    # A connection of its own, because the write pool has only one. The lock belongs to the
    # transaction, so it ends with the connection, also behind a pooler of connections.
    engine = create_engine(database.url, poolclass=NullPool, isolation_level="READ COMMITTED")
    try:
        with engine.connect() as connection:
            _lock(connection)
            yield
    finally:
        engine.dispose()


def _lock(connection: Connection) -> None:
    _set_locally(connection, "application_name", _own_name())
    # The transaction is idle while the migrations run on another connection.
    _set_locally(connection, "idle_in_transaction_session_timeout", "0")
    _set_locally(connection, "statement_timeout", "0")
    if connection.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _KEY}):
        return
    log.info(
        "waiting for another process, which brings the database's schema up to date: %s",
        _holder(connection),
    )
    _set_locally(connection, "lock_timeout", f"{int(WAIT_S * 1000)}ms")
    try:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _KEY})
    except OperationalError as exc:
        if getattr(exc.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        connection.rollback()
        raise Unavailable(
            "another process has been bringing the database's schema up to date for more than"
            f" {WAIT_S:g} s ({_holder(connection)}): wait for its end, or, if it hangs, end it with"
            " pg_terminate_backend, and start again"
        ) from exc


def _set_locally(connection: Connection, name: str, value: str) -> None:
    """Change a setting of the server until the transaction ends."""
    connection.execute(
        text("SELECT set_config(:name, :value, true)"), {"name": name, "value": value}
    )


def _own_name() -> str:
    """What `pg_stat_activity` shows of this process while it holds the lock or waits for it."""
    name = f"deltahub migration: process {os.getpid()} on {socket.gethostname()}"
    return name.encode("ascii", "replace").decode()[:_MAX_NAME]


def _holder(connection: Connection) -> str:
    """What the server tells of the process that holds the lock."""
    halves = {"high": _KEY >> 32, "low": _KEY & 0xFFFFFFFF}
    row: Any = connection.execute(_HOLDER, halves).first()
    if row is None:
        return "it has just ended"
    found = f"PostgreSQL's process {row.pid}"
    # Other roles' sessions show no more than that.
    for value, what in (
        (row.application_name, "application"), (row.usename, "user"), (row.address, "from"),
        (row.xact_start and f"{row.xact_start:%F %T %Z}", "since"),
    ):  # fmt: skip
        if value:
            found += f", {what} {value}"
    return found

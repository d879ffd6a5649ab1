"""Locks of a hub whose database is shared by several machines: rows that their holders renew.

A lock of the kernel ends with its process, but no kernel sees the processes of another machine. So
a holder renews its row several times within LEASE_S, and a row that was not renewed in that time
may be deleted by anybody. Its process has died, or is so slow that it must not go on: it finds the
row gone when it wakes up, and before that none of its write sessions commits (`fence`).
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import ColumnElement, Interval, create_engine, delete, func, literal, select, update
from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.data_folder import DataFolderBusy
from deltahub.registry.db.columns import UtcDateTime
from deltahub.registry.db.session import Database, ReadSession, WriteSession
from deltahub.registry.db.tables.leases import Lease
from deltahub.registry.errors import Unavailable

log = logging.getLogger(__name__)

# A process that has not renewed its lease for so many seconds counts as dead.
LEASE_S: Final = 6.0
_RENEW_S: Final = LEASE_S / 4
# Longest wait for the database when a lease is renewed, in seconds.
_CONNECT_S: Final = 3


class LeaseLost(Unavailable):
    """Another process took this one for dead, and may have taken over its work."""


class HeldLease:
    """A lock of the hub, held while the context is open. DataFolderBusy if another process has it.

    id: random, names this hold of the lock.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        command: str,
        *,
        is_shared: bool = False,
        about: Mapping[str, Any] | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """is_shared: other processes may hold the lock at the same time, if they share it, too.

        about: plain JSON for people. on_lost: called in another thread when the lease is lost.
        """
        self.id = secrets.token_hex(16)
        self._database = database
        self._name = name
        self._command = command
        self._is_shared = is_shared
        self._about = dict(about or {})
        self._on_lost = on_lost
        self._has_looked = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name=name, daemon=True)
        # A connection of its own: neither a long write session nor a full pool may end the lease.
        self._engine = create_engine(
            database.url,
            pool_size=1,
            max_overflow=0,
            isolation_level="AUTOCOMMIT",
            connect_args={"connect_timeout": _CONNECT_S, "tcp_user_timeout": 1000 * _CONNECT_S},
        )

    def __enter__(self) -> Self:
        with self._database.write() as session:
            session.execute(delete(Lease).where(Lease.name == self._name, is_over()))
            for other in session.scalars(select(Lease).where(Lease.name == self._name)):
                if not (self._is_shared and other.is_shared):
                    raise held_by(other)
            now = session.scalar(select(database_time()))
            session.add(
                Lease(
                    id=self.id,
                    name=self._name,
                    is_shared=self._is_shared,
                    command=self._command,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    about=self._about,
                    begun_at=now,
                    renewed_at=now,
                )
            )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        try:
            with self._engine.connect() as connection:
                connection.execute(delete(Lease).where(Lease.id == self.id))
        except SQLAlchemyError as failure:
            log.warning("a lease ends by itself in %.0f s: %s", LEASE_S, failure)
        self._engine.dispose()

    def mark_looked(self) -> None:
        """Note that this process has looked for jobs just now."""
        self._has_looked.set()

    def fence(self, session: WriteSession) -> None:
        """LeaseLost unless the lease still exists; nobody deletes it before this session ends."""
        # A lock that lets this process renew the row, and lets nobody delete it.
        row = select(Lease.id).where(Lease.id == self.id)
        if session.scalar(row.with_for_update(read=True, key_share=True)) is None:
            raise LeaseLost(
                f"`{self._command}` stood still for more than {LEASE_S:.0f} s, so that other"
                " processes went on without it; start it again"
            )

    def _keep_renewing(self) -> None:
        while not self._ended.wait(_RENEW_S):
            values: dict[str, Any] = {"renewed_at": database_time()}
            if self._has_looked.is_set():
                values["looked_at"] = database_time()
            try:
                with self._engine.connect() as connection:
                    renew = update(Lease).where(Lease.id == self.id).values(**values)
                    is_held = connection.execute(renew).rowcount == 1
            except SQLAlchemyError as failure:
                # Nobody else can take the lease over while the database is away.
                log.warning("a lease could not be renewed: %s", failure)
                continue
            self._has_looked.clear()
            if not is_held:
                log.error("lease %s of `%s` was lost", self.id, self._command)
                self._on_lost()
                return


def held_by(lease: Lease) -> DataFolderBusy:
    """The error that says who holds a lock."""
    return DataFolderBusy(lease.name, "the hub", f"{lease.pid} on {lease.host}", lease.command)


def database_time() -> ColumnElement[Any]:
    """SQL: the time now, by the clock of the database, in UTC."""
    return func.clock_timestamp(type_=UtcDateTime)


def is_over() -> ColumnElement[bool]:
    """SQL condition on Lease: its process counts as dead."""
    age = literal(timedelta(seconds=LEASE_S), Interval)
    return Lease.renewed_at < database_time() - age


def end_dead(session: WriteSession, name: str) -> int:
    """Delete the leases of this lock whose processes count as dead; returns how many."""
    ended = session.scalars(delete(Lease).where(Lease.name == name, is_over()).returning(Lease.id))
    return len(ended.all())


def live(session: ReadSession, name: str) -> list[Lease]:
    """The leases of this lock whose processes live, oldest first."""
    query = select(Lease).where(Lease.name == name, ~is_over()).order_by(Lease.begun_at)
    return list(session.scalars(query))


def seconds_since_look(session: ReadSession, name: str) -> float | None:
    """Seconds since a process with this lock last looked for jobs; None if none ever did."""
    age = func.extract("epoch", database_time() - func.max(Lease.looked_at))
    found = session.scalar(select(age).where(Lease.name == name))
    return None if found is None else float(found)

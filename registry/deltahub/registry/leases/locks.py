"""How a process locks the hub: in the data folder, or in the database if machines share it."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from deltahub.registry import data_folder
from deltahub.registry.data_folder import WORKER_LOCK, DataFolderLock
from deltahub.registry.db.session import fenced
from deltahub.registry.leases.lease import HeldLease, held_by, live
from deltahub.registry.leases.signs_of_life import mark_seen, write_about
from deltahub.registry.registry import Registry


def alone(reg: Registry, name: str, command: str) -> AbstractContextManager[None]:
    """A context that has a lock of the hub to itself; DataFolderBusy.

    Write sessions of this thread in it raise LeaseLost once other processes take this one for dead.
    """
    return _file(reg, name, command) if reg.db.is_sqlite else _row(reg, name, command)


@contextmanager
def together(
    reg: Registry,
    name: str,
    command: str,
    about: Mapping[str, Any],
    on_lost: Callable[[], None],
) -> Iterator["Held"]:
    """A context that shares a lock with the same command on other machines; DataFolderBusy.

    With SQLite a hub has one machine and one process of each kind, so that the lock is not shared.
    about, on_lost: see HeldLease.
    """
    if reg.db.is_sqlite:
        with DataFolderLock(reg.data_dir, name, command):
            if name == WORKER_LOCK:
                write_about(reg, about)
            yield Held(secrets.token_hex(16), partial(mark_seen, reg))
        return
    lease = HeldLease(reg.db, name, command, is_shared=True, about=about, on_lost=on_lost)
    with lease:
        yield Held(lease.id, lease.mark_looked)


@dataclass(frozen=True)
class Held:
    """A lock that this process holds.

    id: of no other process. mark_looked: notes that this worker has looked for jobs just now.
    """

    id: str
    mark_looked: Callable[[], None]


def others(reg: Registry, name: str, held: Held | None = None) -> list[Mapping[str, Any]]:
    """What the other processes that share this lock say of themselves.

    held: this process's own, if it has the lock, too.
    """
    if reg.db.is_sqlite:
        return []
    own = None if held is None else held.id
    with reg.db.read() as session:
        return [each.about for each in live(session, name) if each.id != own]


def check_free(reg: Registry, name: str) -> None:
    """DataFolderBusy while a process holds this lock."""
    if reg.db.is_sqlite:
        data_folder.check_free(reg.data_dir, name)
        return
    with reg.db.read() as session:
        for held in live(session, name):
            raise held_by(held)


@contextmanager
def _file(reg: Registry, name: str, command: str) -> Iterator[None]:
    with DataFolderLock(reg.data_dir, name, command):
        yield


@contextmanager
def _row(reg: Registry, name: str, command: str) -> Iterator[None]:
    with HeldLease(reg.db, name, command) as held, fenced(held.fence):
        yield

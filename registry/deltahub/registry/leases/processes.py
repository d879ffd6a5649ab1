"""Which processes of a hub run, as far as it can be told."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select

from deltahub.registry.data_folder import WORKER
from deltahub.registry.db.tables.leases import Lease
from deltahub.registry.leases.lease import is_over
from deltahub.registry.leases.signs_of_life import read_about, worker_seen_at
from deltahub.registry.registry import Registry


@dataclass(frozen=True)
class ProcessInfo:
    """A process that holds a lock of the hub. about: what it says of itself: queues, device.

    looked_at: when a worker last looked for jobs.
    """

    command: str
    host: str
    pid: int
    about: Mapping[str, Any]
    begun_at: datetime
    looked_at: datetime | None


def list_processes(reg: Registry) -> list[ProcessInfo]:
    """The processes that live, oldest first. Of a hub on one machine: its worker alone."""
    if reg.db.is_sqlite:
        return _only_worker(reg)
    with reg.db.read() as session:
        query = select(Lease).where(~is_over()).order_by(Lease.begun_at)
        return [
            ProcessInfo(
                each.command, each.host, each.pid, each.about, each.begun_at, each.looked_at
            )
            for each in session.scalars(query)
        ]


def _only_worker(reg: Registry) -> list[ProcessInfo]:
    seen_at = worker_seen_at(reg)
    if seen_at is None:
        return []
    about = read_about(reg)
    seen = datetime.fromtimestamp(seen_at, UTC)
    begun = about.pop("begun_at", None)
    began = datetime.fromtimestamp(begun, UTC) if isinstance(begun, int | float) else seen
    pid = about.pop("pid", 0)
    return [ProcessInfo(WORKER, socket.gethostname(), pid, about, began, seen)]

"""Which processes of a hub run, as far as it can be told."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from deltahub.registry.db.tables.leases import Lease
from deltahub.registry.leases.lease import is_over
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


def list_processes(reg: Registry) -> list[ProcessInfo] | None:
    """The processes that live, oldest first; None where the hub has one machine, whose locks are
    files and say no more than that they are held.
    """
    if reg.db.is_sqlite:
        return None
    with reg.db.read() as session:
        query = select(Lease).where(~is_over()).order_by(Lease.begun_at)
        return [
            ProcessInfo(
                each.command, each.host, each.pid, each.about, each.begun_at, each.looked_at
            )
            for each in session.scalars(query)
        ]

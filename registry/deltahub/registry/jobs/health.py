"""The health of a hub: whether its database and store answer, and whether a worker takes jobs.

A worker gives a sign of life after it has looked for jobs and started those that may run: it
touches a file in the data folder, or notes the time in its lease where several machines share the
database. A lock would say less: a process that hangs or dies at every start holds it too.
"""

import logging
import time
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import select

from deltahub.registry.db import schema
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import DataLost, StorageFull, Unavailable
from deltahub.registry.jobs.store_watch import PAUSE_S, StoreWatch
from deltahub.registry.leases import signs_of_life
from deltahub.registry.registry import Registry

# A worker that has not looked for jobs for so many seconds counts as dead. It looks several times a
# second, but may wait for the database's lock for half a minute.
SILENT_S: Final = 60.0
# A worker that a server starts has so many seconds until it looks for jobs for the first time.
START_S: Final = 30.0
log = logging.getLogger(__name__)

_WAY_OUT: Final = (
    "the operator finds the reason in the log of `deltahub serve` or `deltahub worker`"
)


@dataclass(frozen=True)
class Problem:
    """A part of the hub that does not work, and why."""

    part: Literal["database", "store", "worker"]
    message: str


class Health:
    """What one server process says about its hub. Safe to share between threads."""

    def __init__(self, reg: Registry, store_pause_s: float = PAUSE_S) -> None:
        """store_pause_s: between two questions to the store."""
        self._reg = reg
        self._store = StoreWatch(reg, store_pause_s)
        self._worker_due_at = 0.0
        self._is_database_away = False

    def start(self) -> None:
        """Ask the store at intervals from now on, in a thread, until stop()."""
        self._store.start()

    def stop(self) -> None:
        self._store.stop()

    def expect_worker(self, within_s: float = START_S) -> None:
        """A worker is being started: for so many seconds it is no problem that none is there."""
        self._worker_due_at = time.monotonic() + within_s

    def problems(self) -> list[Problem]:
        """The parts of the hub that do not work. Waits for the database, not for the store."""
        found = self.serving_problems()
        worker = worker_problem(self._reg)
        if worker is None:
            self._worker_due_at = 0.0  # it has come: from now on its end is a problem
        elif time.monotonic() < self._worker_due_at:
            worker = None
        if worker is not None:
            found.append(Problem("worker", worker))
        return found

    def serving_problems(self) -> list[Problem]:
        """The parts that this server needs for requests and that do not work; as problems()."""
        database = self._database_problem()
        if database is not None:
            # Without the database nobody knows which store is the hub's.
            return [Problem("database", database)]
        store = self._store.problem()
        return [] if store is None else [Problem("store", store)]

    def _database_problem(self) -> str | None:
        try:
            with self._reg.db.read() as session:
                session.scalar(select(Job.id).limit(1))
            with self._reg.db.errors_translated():
                version = schema.current(self._reg.db)
        except (DataLost, StorageFull, Unavailable) as error:
            # Not the error's own message: it may name the database's host, and everybody may ask.
            if not self._is_database_away:
                log.warning("the hub is degraded: %s", error)
            self._is_database_away = True
            what = "is damaged" if isinstance(error, DataLost) else "does not answer"
            return f"the database {what}; the server's log says why"
        if self._is_database_away:
            log.info("the database answers again")
        self._is_database_away = False
        if schema.serves(version):
            return None
        return (
            f"the database has schema version {version}, and this server needs {schema.head()}:"
            " another release has changed it, so start that one"
        )


def worker_problem(reg: Registry) -> str | None:
    """Why no worker can be relied on; None if one lives, or the database does not answer."""
    try:
        silent_s = signs_of_life.silent_s(reg)
    except (DataLost, StorageFull, Unavailable):
        return None
    if silent_s is None:
        return f"no worker runs on this hub; {_WAY_OUT}"
    if silent_s < SILENT_S:
        return None
    return f"no worker has looked for jobs for {silent_s:.0f} s; {_WAY_OUT}"

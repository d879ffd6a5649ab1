"""Counts what a database does: how long transactions that write take, and which errors it meets."""

from time import perf_counter
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import Connection, ExceptionContext

from deltahub.registry.db.failures import translation
from deltahub.registry.db.session import Database
from deltahub.registry.errors import DataLost, StorageFull, Unavailable
from deltahub.registry.measures import Measures

_BEGAN_AT: Final = "deltahub.began_at"
_OUTCOME: Final = "deltahub.outcome"


def measure(database: Database, measures: Measures) -> None:
    """Count into `measures` from now on.

    A transaction lasts from its wait for the lock of all writers until its connection is free
    again, so its commit is part of it.
    """
    writer = database.write_engine

    def begin(connection: Connection) -> None:
        connection.info[_BEGAN_AT] = perf_counter()
        connection.info.pop(_OUTCOME, None)

    def commit(connection: Connection) -> None:
        connection.info[_OUTCOME] = "committed"

    def rollback(connection: Connection) -> None:
        if not connection.invalidated:  # else the server has ended it, and it has no info
            connection.info[_OUTCOME] = "rolled_back"

    def checkin(_driver_connection: object, record: Any) -> None:
        began_at = record.info.pop(_BEGAN_AT, None)
        if began_at is not None:
            # An outcome is missing where the connection was lost.
            outcome = record.info.pop(_OUTCOME, "rolled_back")
            measures.write_seconds.add((outcome,), perf_counter() - began_at)

    # First of all listeners, because the next one waits for the lock.
    event.listen(writer, "begin", begin, insert=True)
    event.listen(writer, "commit", commit)
    event.listen(writer, "rollback", rollback)
    event.listen(writer.pool, "checkin", checkin)

    def handle_error(context: ExceptionContext) -> None:
        error = translation(context.sqlalchemy_exception or context.original_exception)
        if isinstance(error, DataLost | StorageFull | Unavailable):
            measures.database_errors.add((error.code,))

    for engine in (database.read_engine, writer):
        event.listen(engine, "handle_error", handle_error)

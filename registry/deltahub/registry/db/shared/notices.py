"""Notices between the processes of a hub on PostgreSQL: that a job has changed (LISTEN, NOTIFY).

Notices are a hint. A pooler of connections in transaction mode swallows them without an error, and
a process may die between its commit and its notice. So whoever waits for one looks now and then
anyway.
"""

import logging
import threading
import time
from contextlib import suppress
from typing import Final

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

_CHANNEL: Final = "deltahub_jobs"
# Jobs are looked at so often without a notice, in seconds.
LOOK_INTERVAL_S: Final = 2.0
_CONNECT_AGAIN_S: Final = 2.0


class Notices:
    """Sends notices, and counts those of other processes."""

    def __init__(self, url: str) -> None:
        # A notice in the transaction of the change would let commits wait for each other.
        self._engine = create_engine(
            url, pool_pre_ping=True, pool_size=1, max_overflow=4, isolation_level="AUTOCOMMIT"
        )
        self._n_received = 0
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self) -> None:
        """Tell all processes that a job has changed. A failure is no error."""
        with suppress(SQLAlchemyError), self._engine.connect() as connection:
            connection.execute(text(f"NOTIFY {_CHANNEL}"))

    def count(self) -> int:
        """A number that changes soon after a notice, and every LOOK_INTERVAL_S seconds."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="notices", daemon=True)
                self._thread.start()
        return self._n_received + int(time.monotonic() / LOOK_INTERVAL_S)

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._engine.dispose()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                with self._engine.connect() as connection:
                    connection.execute(text(f"LISTEN {_CHANNEL}"))
                    driver = connection.connection.driver_connection
                    assert driver is not None
                    self._n_received += 1  # for those that came before
                    while not self._closed.is_set():
                        for _ in driver.notifies(timeout=0.5, stop_after=1):
                            self._n_received += 1
                    connection.detach()  # the pool must not give a connection that listens
            except Exception as error:
                log.info("listening for changes of jobs again in a moment: %s", error)
                self._closed.wait(_CONNECT_AGAIN_S)

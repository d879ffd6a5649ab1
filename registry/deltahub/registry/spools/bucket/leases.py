"""Keeps the claims of this process alive: one thread extends all leases while there are any."""

import logging
import threading
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.db.session import Database
from deltahub.registry.errors import RegistryError
from deltahub.registry.spools.bucket import rows

log = logging.getLogger(__name__)

# Well below the length of a lease, so that a database that is slow for a moment ends none.
RENEW_S: Final = 5.0


class Leases:
    """The tokens of the uploads that this process receives. Safe to share between threads."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._tokens: set[str] = set()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, token: str) -> None:
        with self._lock:
            self._tokens.add(token)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew_often, name="leases", daemon=True
                )
                self._thread.start()

    def let_go(self, token: str) -> None:
        with self._lock:
            self._tokens.discard(token)

    def close(self) -> None:
        self._is_closed.set()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _renew_often(self) -> None:
        while not self._is_closed.wait(RENEW_S):
            with self._lock:
                tokens = sorted(self._tokens)
                if not tokens:
                    self._thread = None  # the next upload starts another one
                    return
            try:
                rows.renew(self._db, tokens)
            except (RegistryError, SQLAlchemyError) as exc:
                # Whoever claims the uploads meanwhile goes on with what is recorded.
                log.warning("the leases of %d uploads could not be renewed: %s", len(tokens), exc)

"""Asks the store at intervals, in a thread of its own, whether it answers.

A request to a bucket may be repeated for half a minute, and a disk may hang for ever. Whoever wants
to know how the store is must not wait for that, so the answer is always that of the last question.
"""

import logging
import threading
import time
from typing import Final

from deltahub.registry import cancellation
from deltahub.registry.cancellation import Cancellation
from deltahub.registry.errors import DataLost, StorageFull, Unavailable
from deltahub.registry.registry import Registry
from deltahub.registry.stores.places import read_places

log = logging.getLogger(__name__)

# Seconds between the end of a question and the next one.
PAUSE_S: Final = 5.0
# A store that needs more seconds than this for one small read does not work.
SLOW_S: Final = 5.0
# How long stop() waits for a question that the store does not answer.
_STOP_S: Final = 1.0


class StoreWatch:
    """Knows whether the hub's store answers. It asks from start() to stop(), one question a time.

    The question reads the mark of the store that is current at that moment, so it follows a move.
    """

    def __init__(self, reg: Registry, pause_s: float = PAUSE_S, slow_s: float = SLOW_S) -> None:
        self._reg = reg
        self._pause_s = pause_s
        self._slow_s = slow_s
        self._is_stopped = threading.Event()
        self._cancellation = Cancellation()
        # A daemon: a disk that hangs must not keep the process.
        self._thread = threading.Thread(target=self._run, name="store watch", daemon=True)
        self._is_away = False
        # When the question began that the store has not answered yet.
        self._asked_at: float | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. The thread may outlive this for as long as the store does not answer."""
        self._is_stopped.set()
        self._cancellation.cancel()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def problem(self) -> str | None:
        """Why the store cannot be relied on; None if it can, or was not asked yet. Does not wait.

        Everybody may read this, so it does not say where the store is.
        """
        asked_at = self._asked_at
        waited_s = 0.0 if asked_at is None else time.monotonic() - asked_at
        if waited_s > self._slow_s:
            return f"the store of the objects has not answered for {waited_s:.0f} s"
        if self._is_away:
            return "the store of the objects does not answer; the server's log says why"
        return None

    def _run(self) -> None:
        cancellation.use(self._cancellation)  # ends the pauses between repeated requests
        while not self._is_stopped.is_set():
            began = self._asked_at = time.monotonic()
            failure = self._failure()
            took_s = time.monotonic() - began
            is_slow = failure is None and took_s > self._slow_s
            if self._is_stopped.is_set():
                return
            self._note(f"it took {took_s:.1f} s to answer" if is_slow else failure)
            self._asked_at = None
            # A slow answer may be that of a store that has just come back: ask again at once.
            self._is_stopped.wait(0 if is_slow else self._pause_s)

    def _failure(self) -> str | None:
        """Ask the store; why it does not work, None if it does."""
        try:
            with self._reg.db.read() as session:
                places = read_places(session)
            mark = self._reg.store.mark()
        except (DataLost, StorageFull, Unavailable):
            return None  # of the database, which says where the store is; health names it by itself
        except Exception as error:  # of any kind, because this thread must go on
            return f"{type(error).__name__}: {error}"
        # During a move the current place may have become another one of these meanwhile.
        if places is None or mark in {place.mark for place in places.in_order_of_copying()}:
            return None
        return (
            "another bucket or folder is there, or it was emptied: its mark is not that of this hub"
        )

    def _note(self, failure: str | None) -> None:
        is_away = failure is not None
        if is_away and not self._is_away:
            log.warning("the hub is degraded: the store of the objects: %s", failure)
        elif self._is_away and not is_away:
            log.info("the store of the objects answers again")
        self._is_away = is_away

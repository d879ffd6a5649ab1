"""A value that is made again at intervals, in a thread of its own, when somebody asks for it."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from deltahub.registry.errors import RegistryError

T = TypeVar("T")

log = logging.getLogger(__name__)

# The thread rests at least so many times as long as it worked.
_REST: Final = 20


class Refreshed(Generic[T]):
    """The result of `make`, which is at most about `age_s` old. Safe to share between threads.

    One thread makes it at a time. While it works, and `make` may hang, the last value counts until
    it is too old.
    """

    def __init__(self, make: Callable[[], T], age_s: float) -> None:
        self._make = make
        self._age_s = age_s
        self._lock = threading.Lock()
        self._value: T | None = None
        self._made_at = 0.0
        self._due_at = 0.0
        self._thread: threading.Thread | None = None

    def get(self, wait_s: float) -> T | None:
        """Return the value; None if there is none that is young enough.

        Waits up to wait_s for a new value if it is time for one. None also means that `make` failed
        the last time, or that it has worked for longer than the value may be old.
        """
        with self._lock:
            thread = self._thread
            if thread is None and time.monotonic() >= self._due_at:
                thread = self._thread = threading.Thread(
                    target=self._run, name="monitoring", daemon=True
                )
                thread.start()
        if thread is not None:
            thread.join(wait_s)
        with self._lock:
            is_late = self._thread is not None and self._is_old()
            return None if is_late else self._value

    def age_s(self) -> float:
        """Return how long ago the value was made."""
        return time.monotonic() - self._made_at

    def _is_old(self) -> bool:
        return time.monotonic() > max(self._made_at + 2 * self._age_s, self._due_at + self._age_s)

    def _run(self) -> None:
        began = time.monotonic()
        value = None
        try:
            value = self._make()
        except (RegistryError, OSError) as error:
            log.debug("a number for monitoring cannot be read: %s", error)
        finally:
            now = time.monotonic()
            with self._lock:
                self._value, self._made_at = value, now
                self._due_at = now + max(self._age_s, _REST * (now - began))
                self._thread = None

"""Stops the work of a request whose caller has disconnected.

The server gives each request a Cancellation. Loops whose length a caller chooses call check()
between two pieces. Outside of a request, for example in a job, check() does nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from deltahub.registry.errors import Cancelled


class Cancellation:
    """Says whether the caller of some work has gone. Safe to share between threads."""

    def __init__(self) -> None:
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        self._is_cancelled = True


_current: Final[ContextVar[Cancellation | None]] = ContextVar("cancellation", default=None)


def use(cancellation: Cancellation) -> None:
    """Let check() ask this cancellation in the current context, and in threads that copy it."""
    _current.set(cancellation)


def check() -> None:
    """Cancelled if the caller has disconnected.

    Call it only where an exception leaves nothing half written, as a crash at that line would.
    """
    current = _current.get()
    if current is not None and current.is_cancelled:
        raise Cancelled("the client disconnected, so the hub stopped this work")


@contextmanager
def unstoppable() -> Iterator[None]:
    """A context whose work is done to its end, although its caller has disconnected."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def watcher() -> Callable[[], bool] | None:
    """A function that says whether the caller has disconnected, for any thread.

    None outside of a request.
    """
    current = _current.get()
    return None if current is None else lambda: current.is_cancelled

"""Ends work of a user's making, such as a regular expression, that would never end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from deltahub.registry.errors import InvalidRequest


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """InvalidRequest, which names `what`, if the block takes longer.

    Only in the main thread, which steps run in. Regular expressions look for signals, too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise InvalidRequest(f"{what} takes too long: make it simpler")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

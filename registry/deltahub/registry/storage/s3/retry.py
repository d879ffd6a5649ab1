"""Repeats requests that failed for a moment, with pauses of random length."""

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from deltahub.registry import cancellation
from deltahub.registry.storage.s3.errors import REQUEST_ERRORS, is_transient

FIRST_PAUSE_S: Final = 0.1
MOST_PAUSE_S: Final = 5.0
# How often a pause looks whether its caller has left.
_LOOK_S: Final = 0.2
_T = TypeVar("_T")


def retried(
    request: Callable[[], _T], limit_s: float, check: Callable[[], None] = cancellation.check
) -> _T:
    """What the request returns. Transient errors are repeated until `limit_s` seconds have passed.

    The pause before an attempt is random between zero and a bound that doubles (full jitter), so
    that processes that were refused together do not come back together.

    check: raises when the caller has left. It is asked before each repetition.
    """
    deadline = time.monotonic() + limit_s
    bound = FIRST_PAUSE_S
    while True:
        try:
            return request()
        except REQUEST_ERRORS as exc:
            if not is_transient(exc) or time.monotonic() >= deadline:
                raise
        pause = random.uniform(0, bound)
        bound = min(bound * 2, MOST_PAUSE_S)
        _wait(min(pause, deadline - time.monotonic()), check)


def _wait(pause_s: float, check: Callable[[], None]) -> None:
    check()
    end = time.monotonic() + pause_s
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_S))
        check()

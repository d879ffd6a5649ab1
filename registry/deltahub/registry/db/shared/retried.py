"""Runs a function again when one of its write sessions lost a race against another writer."""

import functools
import random
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from deltahub.registry.errors import WriteConflict

P = ParamSpec("P")
T = TypeVar("T")

# Pauses before the tries after the first, in seconds, shortened at random so that two writers that
# hinder each other do not meet again.
_PAUSES_S: Final = (0.02, 0.1, 0.5, 1.0)


def retried(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that writes with Database.write_beside(), and may run several times.

    Its last WriteConflict is raised.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        for pause_s in _PAUSES_S:
            try:
                return function(*args, **kwargs)
            except WriteConflict:
                time.sleep(pause_s * random.uniform(0.5, 1))
        return function(*args, **kwargs)

    return run

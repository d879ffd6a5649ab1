"""Records results of steps, and dies in a step that a test names."""

import json
from collections.abc import Callable
from typing import Any


class Killed(Exception):
    """The worker died here."""


class Recorded:
    """Records results of steps as the engine does, and dies in one of them.

    is_late: it dies after the step's work, before its result is recorded.
    """

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.dies_in: int | None = None
        self.is_late = False

    def __call__(self, name: str, function: Callable[[], Any]) -> Any:
        if name in self.results:
            return json.loads(self.results[name])
        number = len(self.results)
        if number == self.dies_in and not self.is_late:
            raise Killed
        result = function()
        if number == self.dies_in:
            raise Killed
        self.results[name] = json.dumps(result)
        return json.loads(self.results[name])

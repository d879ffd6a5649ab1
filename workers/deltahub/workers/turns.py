"""Turns: which jobs of this process may run a step now."""

import threading
import time
from collections.abc import Mapping


class Turns:
    """A fixed number of turns in each lane. A job holds one while it runs; its thread waits for it.

    Jobs of one lane never wait for turns of another.
    """

    def __init__(self, n_turns: Mapping[str, int]) -> None:
        self._n_turns = n_turns
        self._changed = threading.Condition()
        # job -> its lane, and when it got its turn
        self._held: dict[str, tuple[str, float]] = {}

    @property
    def lanes(self) -> tuple[str, ...]:
        return tuple(self._n_turns)

    def n_free(self, lane: str) -> int:
        """Turns that no job holds. Negative if a restart resumed more jobs than there are turns."""
        with self._changed:
            return self._n_turns[lane] - sum(lane == each for each, _ in self._held.values())

    def grant(self, job: str, lane: str) -> None:
        with self._changed:
            self._held[job] = lane, time.monotonic()
            self._changed.notify_all()

    def release(self, job: str) -> None:
        with self._changed:
            self._held.pop(job, None)

    def wait(self, job: str, timeout_s: float) -> bool:
        """Whether the job holds a turn; waits for one up to timeout_s seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: job in self._held, timeout_s)

    def held_s(self, job: str) -> float:
        """How long the job has held its turn, in seconds; 0 without one."""
        now = time.monotonic()
        with self._changed:
            return now - self._held.get(job, ("", now))[1]

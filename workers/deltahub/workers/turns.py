"""Turns: which jobs of this process may run a step now."""

import threading
import time


class Turns:
    """A fixed number of turns. A job holds one while it runs; its thread waits until it has one."""

    def __init__(self, n_turns: int) -> None:
        self._n_turns = n_turns
        self._changed = threading.Condition()
        self._since: dict[str, float] = {}  # job -> when it got its turn

    @property
    def n_free(self) -> int:
        """Turns that no job holds. Negative if a restart resumed more jobs than there are turns."""
        with self._changed:
            return self._n_turns - len(self._since)

    def grant(self, job: str) -> None:
        with self._changed:
            self._since[job] = time.monotonic()
            self._changed.notify_all()

    def release(self, job: str) -> None:
        with self._changed:
            self._since.pop(job, None)

    def wait(self, job: str, timeout_s: float) -> bool:
        """Whether the job holds a turn; waits for one up to timeout_s seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: job in self._since, timeout_s)

    def held_s(self, job: str) -> float:
        """How long the job has held its turn, in seconds; 0 without one."""
        with self._changed:
            return time.monotonic() - self._since.get(job, time.monotonic())

"""What one process has counted since it started: durations, bytes and errors, by a few labels.

Labels are names of operations, kinds and codes, never names of users or of what they store: each
value that a label takes costs memory here, and in whatever reads these numbers.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, TypeAlias

Labels: TypeAlias = tuple[str, ...]

# Upper bounds of durations, in seconds. A read from a local disk takes less than a millisecond, and
# a request to a bucket may be repeated for half a minute.
OPERATION_BOUNDS_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)
JOB_BOUNDS_S: Final = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)


class Counts:
    """A sum for each set of labels. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sums: dict[Labels, float] = {}

    def add(self, labels: Labels, n: float = 1) -> None:
        with self._lock:
            self._sums[labels] = self._sums.get(labels, 0) + n

    def read(self) -> dict[Labels, float]:
        with self._lock:
            return dict(self._sums)


@dataclass
class Spread:
    """How many durations were at most as long as each bound and longer than the one before.

    counts: one for each bound, and a last one for durations that are longer than all bounds.
    """

    counts: list[int]
    total_s: float = 0.0


class Durations:
    """How long things took, for each set of labels. Safe to share between threads."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self._lock = Lock()
        self._spreads: dict[Labels, Spread] = {}

    def expect(self, labels: Labels) -> None:
        """Show that nothing happened yet: an alert on growth misses a count that begins at one."""
        with self._lock:
            self._spread_of(labels)

    def add(self, labels: Labels, seconds: float) -> None:
        at = bisect_left(self.bounds_s, seconds)
        with self._lock:
            spread = self._spread_of(labels)
            spread.counts[at] += 1
            spread.total_s += seconds

    def _spread_of(self, labels: Labels) -> Spread:
        spread = self._spreads.get(labels)
        if spread is None:
            spread = self._spreads[labels] = Spread([0] * (len(self.bounds_s) + 1))
        return spread

    def read(self) -> dict[Labels, Spread]:
        with self._lock:
            return {
                labels: Spread(list(spread.counts), spread.total_s)
                for labels, spread in self._spreads.items()
            }


@dataclass(frozen=True)
class Numbers:
    """What a process had counted at one moment."""

    store_seconds: Mapping[Labels, Spread]
    store_errors: Mapping[Labels, float]
    store_bytes: Mapping[Labels, float]
    write_seconds: Mapping[Labels, Spread]
    database_errors: Mapping[Labels, float]
    job_seconds: Mapping[Labels, Spread]

    def to_json(self) -> str:
        """Text that from_json() reads."""
        return json.dumps(
            {
                name: [
                    [labels, [value.counts, value.total_s] if isinstance(value, Spread) else value]
                    for labels, value in found.items()
                ]
                for name, found in vars(self).items()
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Numbers":
        """What to_json() wrote. ValueError, KeyError or TypeError for other text."""
        read: dict[str, Any] = json.loads(text)
        found: dict[str, Any] = {
            name: {
                tuple(labels): Spread(*value) if name.endswith("_seconds") else value
                for labels, value in read[name]
            }
            for name in cls.__dataclass_fields__
        }
        return cls(**found)


@dataclass(frozen=True)
class Measures:
    """The counters of one process that has a registry open."""

    # By operation (storage/measured/store.py).
    store_seconds: Durations = field(default_factory=lambda: Durations(OPERATION_BOUNDS_S))
    # By operation, and the code of the error.
    store_errors: Counts = field(default_factory=Counts)
    # By "read" and "written".
    store_bytes: Counts = field(default_factory=Counts)
    # By outcome: "committed" or "rolled_back". With the wait for the lock of all writers.
    write_seconds: Durations = field(default_factory=lambda: Durations(OPERATION_BOUNDS_S))
    # By the code of the error.
    database_errors: Counts = field(default_factory=Counts)
    # By kind of job and outcome: "done", "failed", "cancelled" or "repeated".
    job_seconds: Durations = field(default_factory=lambda: Durations(JOB_BOUNDS_S))

    def read(self) -> Numbers:
        return Numbers(**{name: counter.read() for name, counter in vars(self).items()})

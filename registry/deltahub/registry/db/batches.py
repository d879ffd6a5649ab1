"""Splits long lists of values into batches that fit into one SQL statement."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


# Bound parameters a statement; SQLite allows 32,766 and its planner prefers fewer.
BATCH = 500


# Tensors (or whole files) that one transaction makes known or holds: a fraction of a second of
# SQLite's only lock.
PART_TENSORS = 2000


def batches(items: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch

"""Splits long lists of values into batches that fit into one SQL statement."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


# Bound parameters in one statement. SQLite allows 32,766, but its planner is faster with fewer.
BATCH = 500


# Tensors, or whole files, that one transaction inserts or holds. The transaction then keeps the
# write lock of SQLite for a fraction of a second.
PART_TENSORS = 2000


def batches(items: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch

"""Hooks for the whole suite."""

import os
from typing import Any

import pytest
from hypothesis import settings
from sqlalchemy import Engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

# How long an example takes is the machine's business: benchmarks measure time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Hundreds of tests wait for a job: the workers that they start look for it more often.
os.environ.setdefault("DELTAHUB_WORKER_POLL_INTERVAL_S", "0.06")
# More threads of linear algebra only wait for each other, as the suite runs several processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DELTAHUB_WORKER_COMPUTE_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _share_compiled_statements() -> None:
    """Let the engines of all registries of a process share what SQLAlchemy compiles.

    A hub has its engines for weeks; thousands of tests each open new ones, and compiled the same
    statements for a tenth of the suite's time.
    """
    compiled: LRUCache[Any, Any] = LRUCache(2000)
    engine: Any = Engine
    engine._compiled_cache = property(lambda self: compiled, lambda self, own: None)
    # The dialect is a part of the key: one is as good as another of its class.
    sqlite: Any = SQLiteDialect_pysqlite
    sqlite.__eq__ = lambda self, other: type(self) is type(other)
    sqlite.__hash__ = lambda self: hash(type(self))


_share_compiled_statements()

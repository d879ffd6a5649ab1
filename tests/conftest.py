"""Hooks for the whole suite."""

import os

import pytest
from hypothesis import settings

# How long an example takes is the machine's business: benchmarks measure time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Hundreds of tests wait for a job: the workers that they start look for it more often.
os.environ.setdefault("DELTAHUB_WORKER_POLL_INTERVAL_S", "0.03")
# More threads of linear algebra only wait for each other, as the suite runs several processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)

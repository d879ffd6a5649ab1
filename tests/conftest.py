"""Hooks for the whole suite."""

import pytest
from hypothesis import settings

# How long an example takes is the machine's business: benchmarks measure time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)

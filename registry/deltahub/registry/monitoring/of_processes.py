"""Metrics of what server and worker both do: use the store and the database; and of jobs."""

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from prometheus_client.core import Metric

from deltahub.registry.measures import JOB_BOUNDS_S, OPERATION_BOUNDS_S, Labels, Numbers
from deltahub.registry.monitoring.families import counter, histogram

V = TypeVar("V")

_PROCESS: Final = ("process",)


def process_families(numbers: Mapping[str, Numbers]) -> Iterator[Metric]:
    """Yield the families. numbers: by the name of the process, server or worker."""
    yield histogram(
        "deltahub_store_operation_duration_seconds",
        "Operations of the store of the objects, by name; a put with the making of its bytes.",
        (*_PROCESS, "operation"),
        OPERATION_BOUNDS_S,
        _labelled({name: each.store_seconds for name, each in numbers.items()}),
    )
    yield counter(
        "deltahub_store_errors",
        "Operations of the store that failed, by the code of the error.",
        (*_PROCESS, "operation", "code"),
        _labelled({name: each.store_errors for name, each in numbers.items()}),
    )
    yield counter(
        "deltahub_store_bytes",
        "Bytes of objects that were read from the store or written to it.",
        (*_PROCESS, "direction"),
        _labelled({name: each.store_bytes for name, each in numbers.items()}),
    )
    yield histogram(
        "deltahub_database_write_duration_seconds",
        "Transactions that may write, with their wait for other writers, by how they ended.",
        (*_PROCESS, "outcome"),
        OPERATION_BOUNDS_S,
        _labelled({name: each.write_seconds for name, each in numbers.items()}),
    )
    yield counter(
        "deltahub_database_errors",
        "Statements that failed: the database is locked, full, damaged or away.",
        (*_PROCESS, "code"),
        _labelled({name: each.database_errors for name, each in numbers.items()}),
    )
    yield histogram(
        "deltahub_job_duration_seconds",
        "Runs of jobs by how they ended; a repeated job runs again later.",
        ("kind", "outcome"),
        JOB_BOUNDS_S,
        numbers["worker"].job_seconds if "worker" in numbers else {},
    )


def _labelled(found: Mapping[str, Mapping[Labels, V]]) -> dict[Labels, V]:
    return {
        (process, *labels): value
        for process, values in found.items()
        for labels, value in values.items()
    }

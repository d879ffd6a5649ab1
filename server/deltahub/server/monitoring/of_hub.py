"""Metrics of the whole hub: what it stores, its jobs, and which parts of it work."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric

from deltahub.codecs.registry import BY_NUMBER
from deltahub.registry.jobs.health import Problem
from deltahub.registry.monitoring.families import gauge
from deltahub.registry.reports.codec_totals import CodecTotal
from deltahub.registry.reports.hub_totals import HubTotals

# Always shown, so that an alert sees the first finding come.
_FINDINGS: Final = ("pack", "copy", "landing", "xorb", "tensor")
_PARTS: Final = ("database", "store", "worker")


@dataclass(frozen=True)
class Condition:
    """Parts of the hub that do not work, and room on the disk of the data folder, in bytes."""

    broken_parts: frozenset[str]
    disk_free: int
    disk_size: int
    worker_seen_at: float | None
    problems: tuple[Problem, ...] = ()


def condition_families(condition: Condition | None) -> Iterator[Metric]:
    """Yield the families. None: the database has not answered."""
    broken = frozenset({"database"}) if condition is None else condition.broken_parts
    yield gauge(
        "deltahub_part_up",
        "1 if a part of the hub works, 0 if it does not.",
        ("part",),
        {(part,): float(part not in broken) for part in _PARTS},
    )
    if condition is None:
        return
    yield gauge(
        "deltahub_disk_free_bytes", "Free on the data folder's disk.", (), condition.disk_free
    )
    yield gauge(
        "deltahub_disk_size_bytes", "Size of the data folder's disk.", (), condition.disk_size
    )
    if condition.worker_seen_at is not None:
        yield gauge(
            "deltahub_worker_last_seen_timestamp_seconds",
            "When the worker last looked for jobs.",
            (),
            condition.worker_seen_at,
        )


def total_families(totals: HubTotals) -> Iterator[Metric]:
    yield gauge("deltahub_repositories", "Repositories.", (), totals.n_repositories)
    yield gauge("deltahub_users", "Users.", (), totals.n_users)
    yield gauge(
        "deltahub_stored_bytes",
        "Bytes of objects in the store, by kind of object.",
        ("kind",),
        {(kind,): n_bytes for kind, n_bytes in totals.stored_bytes.items()},
    )
    yield gauge(
        "deltahub_logical_bytes",
        "Bytes of all files of all revisions, as they were pushed.",
        (),
        totals.logical_bytes,
    )
    job = ("kind", "lane", "state")
    counts = {(j.kind, j.lane, j.state): j.n_jobs for j in totals.jobs}
    yield gauge("deltahub_jobs", "Jobs that are queued, run or have failed.", job, counts)
    yield gauge(
        "deltahub_oldest_queued_job_timestamp_seconds",
        "When the oldest queued job was made.",
        ("kind", "lane"),
        {(j.kind, j.lane): j.oldest_at.timestamp() for j in totals.jobs if j.state == "queued"},
    )
    yield gauge(
        "deltahub_open_findings",
        "Damaged or lost objects and tensors that are not repaired, by kind.",
        ("kind",),
        dict.fromkeys(((kind,) for kind in _FINDINGS), 0.0)
        | {(kind,): n for kind, n in totals.findings.items()},
    )


def codec_families(totals: Mapping[int, CodecTotal]) -> Iterator[Metric]:
    """Yield how well each codec compresses: the ratio is decoded bytes through stored bytes."""
    named = {(codec_name(number),): total for number, total in totals.items()}
    label = ("codec",)
    about = "of the frames of a codec, as last counted."
    n_frames = {codec: each.n_frames for codec, each in named.items()}
    decoded = {codec: each.decoded_bytes for codec, each in named.items()}
    stored = {codec: each.stored_bytes for codec, each in named.items()}
    yield gauge("deltahub_frames", f"Number {about}", label, n_frames)
    yield gauge("deltahub_frame_decoded_bytes", f"Bytes in tensors {about}", label, decoded)
    yield gauge("deltahub_frame_stored_bytes", f"Bytes in packs {about}", label, stored)


def codec_name(number: int) -> str:
    """The name of the codec of this number."""
    return BY_NUMBER[number].codec_id if number in BY_NUMBER else "unknown"

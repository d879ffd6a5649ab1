"""Jobs, and the processes that run them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from deltahub.methods.kinds.table import KINDS
from deltahub.registry.access.caller import Caller
from deltahub.registry.jobs import queue, requests
from deltahub.registry.jobs.requests import JobInfo
from deltahub.registry.reports.lists.pages import Asked, Page
from deltahub.server.hub import Hub
from deltahub.server.tables.table import Column, Filter, Table

# Jobs of the hub itself, which nobody asks for.
OWN_KINDS: Final = ("ingest", "inspect_adapter", "prove_recipe", "replan", "scrub", "withdraw")


@dataclass(frozen=True)
class JobRow:
    """A job, without its result and most of its arguments. works_on: the models that it reads."""

    id: str
    kind: str
    state: str
    fraction: float | None
    stage: str | None
    queue: str
    waits_for: str | None
    repository: str | None
    works_on: tuple[str, ...]
    user: str | None
    size_bytes: int
    attempts: int
    error_code: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, job: JobInfo) -> "JobRow":
        progress = job.progress or {}
        return cls(
            job.id, job.kind, job.state, fraction_of(job), progress.get("stage"), job.queue,
            job.waits_for, job.repository or job.payload.get("name"), inputs_of(job), job.user,
            job.size_bytes, job.attempts, job.error_code, job.error, job.created_at,
            job.started_at, job.finished_at,
        )  # fmt: skip


def inputs_of(job: JobInfo) -> tuple[str, ...]:
    """The models that a job reads, as `namespace/name[@revision]`, the most important one first.

    Empty for a job of the hub itself, and for arguments that an older version had and this one
    refuses.
    """
    arguments = KINDS.get(job.kind)
    if arguments is None or "arguments" not in job.payload:
        return ()
    try:
        return arguments.model_validate(job.payload["arguments"]).inputs()
    except ValidationError:
        return ()


def fraction_of(job: JobInfo) -> float | None:
    """The share of a job that is done; None if it does not say."""
    if job.state == "done":
        return 1.0
    progress = job.progress or {}
    if progress.get("fraction") is not None:
        return float(progress["fraction"])
    total = progress.get("total_bytes")
    return float(progress["done_bytes"]) / total if total else None


def _read(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[JobRow]:
    page = requests.page_of_jobs(
        hub.registry, caller, asked,
        state=given["state"], kind=given["kind"], user=given["user"],
    )  # fmt: skip
    return Page([JobRow.of(job) for job in page.items], page.after)


def _read_own(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[JobRow]:
    return _read(hub, caller, asked, {**given, "user": caller.name})


_COLUMNS: Final = (
    Column("id", "Job"),
    Column("kind", "Kind"),
    Column("state", "State"),
    Column("fraction", "Done", "percent", is_shown=False),
    Column("stage", "Stage", is_wide=True, is_shown=False),
    Column("queue", "Queue", is_shown=False),
    Column("waits_for", "Waits for", is_wide=True, is_shown=False),
    Column("repository", "Model"),
    Column("works_on", "Works on", "list"),
    Column("user", "User"),
    Column("size_bytes", "Reads", "size", "size"),
    Column("attempts", "Repeated", "number", is_shown=False),
    Column("error_code", "Error", is_shown=False),
    Column("error", "Why", is_wide=True, is_shown=False),
    Column("created_at", "Made", "time", "created"),
    Column("started_at", "Started", "time", is_shown=False),
    Column("finished_at", "Ended", "time", "finished"),
)
_STATE: Final = Filter(
    "state", "State", (("", "any state"), *((each, each) for each in queue.STATES))
)
_KIND: Final = Filter(
    "kind", "Kind", (("", "any kind"), *((each, each) for each in sorted({*KINDS, *OWN_KINDS})))
)
JOBS: Final = Table(
    "jobs", _COLUMNS, _read, "-created", (_STATE, _KIND, Filter("user", "User")),
    ("No jobs", "Pushes make jobs that store them, and people ask for others."),
    about="All jobs of the hub.",
)  # fmt: skip
OWN_JOBS: Final = Table(
    "jobs", tuple(each for each in _COLUMNS if each.key != "user"), _read_own, "-created",
    (_STATE, _KIND),
    ("You have no jobs", "A push makes a job that stores it. You can also ask for one."),
    about="Your jobs.",
)  # fmt: skip

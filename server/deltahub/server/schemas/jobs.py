"""Background jobs: what may be asked, and what is told of them."""

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from deltahub.methods.errors import MethodError
from deltahub.methods.kinds.kind import JobArguments
from deltahub.methods.kinds.table import KINDS
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.results.asked import Wish
from deltahub.registry.results.known import KnownModel
from deltahub.server.schemas.base import In, Out


class AskIn(In):
    """What all kinds of jobs have in common."""

    kind: str
    arguments: JobArguments
    priority: Literal["low", "normal", "high"] = Field(
        default="normal", description="among your own jobs"
    )
    idempotency_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="the same key again gives the same job, so that a request can be repeated",
    )


def _ask(kind: str, arguments: type[JobArguments]) -> type[AskIn]:
    fields: dict[str, Any] = {"kind": (Literal[kind], ...), "arguments": (arguments, ...)}
    name = f"Ask{arguments.__name__}"
    return create_model(name, __base__=AskIn, __doc__=arguments.__doc__, **fields)


def any_of(kinds: Sequence[type[AskIn]]) -> Any:
    """The type of a body that is one of these, by its `kind`."""
    if len(kinds) == 1:
        return kinds[0]
    return Annotated[reduce(or_, kinds), Field(discriminator="kind")]


_ASKS = tuple(_ask(kind, arguments) for kind, arguments in KINDS.items())
# FastAPI shows each kind with its own arguments, and reads the one that the body names.
AskAnyIn: Any = any_of(_ASKS)


def wish_of(arguments: JobArguments) -> Wish:
    """What the registry is asked for."""
    kind, given = arguments.kind, arguments.model_dump(mode="json")
    # Kinds that make no repository have neither a name nor a visibility.
    name, private = getattr(arguments, "name", None), getattr(arguments, "private", None)

    def check(models: Sequence[KnownModel]) -> None:
        try:
            arguments.check(models)
        except MethodError as error:
            raise InvalidRequest(str(error)) from error

    return Wish(kind, given, name, arguments.inputs(), private, arguments.only_reads, check)


class ProgressOut(Out):
    stage: str
    done_bytes: int
    total_bytes: int
    fraction: float | None = Field(
        default=None, description="of the whole job that is done, if it is known"
    )
    step: int | None = Field(
        default=None, description="the number of the job's step, from 1, if it counts them"
    )
    n_steps: int | None = Field(default=None, description="how many steps the job has")


class JobErrorOut(Out):
    code: str
    message: str


class JobOut(Out):
    id: str
    kind: str
    state: str = Field(description="queued, running, done, failed or cancelled")
    progress: ProgressOut | None
    result: dict[str, Any] | None
    error: JobErrorOut | None = Field(
        description="why it failed; of a queued job, why its last attempt failed"
    )
    attempts: int = Field(description="attempts that failed and were repeated")
    retry_at: datetime | None = Field(description="when a job that failed for a moment runs again")
    waits_for: str | None = Field(
        description="what an unfinished job waits for: a worker, its turn, or its next attempt; "
        "null while it runs"
    )
    arguments: dict[str, Any] | None = Field(
        description="of a job that somebody asked for; null for the hub's own"
    )
    priority: str | None
    repository: str | None = Field(description="the repository that it works on, or has made")
    user: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobsOut(Out):
    items: list[JobOut]


class LogLineOut(Out):
    number: int = Field(description="grows from line to line")
    at: datetime
    text: str


class LogOut(Out):
    items: list[LogLineOut]

"""The kinds of jobs that people start, and the arguments of each."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

RepositoryName = Annotated[str, StringConstraints(pattern=r"^[^\s/@]+/[^\s/@]+$", max_length=200)]
"""`namespace/name`"""

RevisionName = Annotated[str, StringConstraints(pattern=r"^[^\s/@]+/[^\s/@]+(@[^\s@]+)?$")]
"""`namespace/name` or `namespace/name@revision`; without a revision: main."""


class JobArguments(BaseModel, ABC):
    """The arguments of one kind of job: the HTTP body, the SDK call and the CLI's options.

    A field's description is the help text of its option. Unknown fields are refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: ClassVar[str]
    # Increase it when the order or the results of the kind's steps change: unfinished jobs of
    # this kind, and of no other, then start again.
    steps_version: ClassVar[int]
    # Whether the job stores no part of its inputs, so that they may be private in several places.
    only_reads: ClassVar[bool] = False

    dry_run: bool = Field(
        default=False,
        description="Only check the inputs, and estimate bytes, memory and time.",
    )

    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The revisions that the job reads, as `namespace/name[@revision]`."""


class Arguments(JobArguments):
    """The arguments of a job that makes a repository."""

    name: RepositoryName | None = Field(description="The new repository that holds the result.")
    private: bool | None = Field(
        default=None,
        description="Whether the result is private. By default it is if one of its inputs is.",
    )

    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda:[0-9]{1,2})$",
        description="Where models run, if the job runs any: cpu, or a GPU such as cuda:0; auto "
        "takes a GPU if there is one.",
    )


def fault_text(error: Mapping[str, Any]) -> str:
    """What is wrong with an argument, in words of this project. error: one of pydantic's."""
    given, limits = error.get("input"), error.get("ctx") or {}
    place = ".".join(map(str, error["loc"]))
    where = f"{place}: " if place else ""
    if error["type"] == "value_error":
        return str(limits.get("error", error["msg"]))
    if error["type"] == "too_short":
        return f"{where}at least {limits['min_length']} are needed, not {limits['actual_length']}"
    if error["type"] == "string_pattern_mismatch" and "/" in limits.get("pattern", ""):
        return f"{where}{given!r} is no NAMESPACE/NAME"
    if error["type"] == "string_pattern_mismatch":
        return f"{where}{given!r} is not of the form {limits['pattern']}"
    return f"{where}{error['msg']}, not {given!r}"

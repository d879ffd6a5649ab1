"""The kinds of jobs that people start, and the arguments of each."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

RepositoryName = Annotated[
    str, StringConstraints(pattern=r"^[^\s/@.~][^\s/@]*/[^\s/@.][^\s/@]*$", max_length=200)
]
"""`namespace/name`"""

RevisionName = Annotated[
    str, StringConstraints(pattern=r"^[^\s/@.~][^\s/@]*/[^\s/@.][^\s/@]*(@[^\s@]+)?$")
]
"""`namespace/name` or `namespace/name@revision`; without a revision: main."""

TEXT_FILE: Final = {"contentMediaType": "text/plain"}
"""`json_schema_extra` of a field with the contents of a text file, whose path a command takes."""

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""tensor -> (dtype, shape)"""


class KnownModel(Protocol):
    """An input of a job that has not begun. Its methods raise errors of the hub's.

    report: on an adapter; None if the hub has none that holds for today's base.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def is_adapter(self) -> bool: ...
    @property
    def is_export(self) -> bool: ...
    @property
    def report(self) -> Mapping[str, Any] | None: ...

    def require_head(self) -> None:
        """It is the head of main, and the user may write to its repository."""

    def require_base(self) -> Self:
        """The base that it names, which the hub has."""

    def refuse_hidden_base(self, base: Self) -> None:
        """A part of the base's weights may be stored with it."""

    def has_initial_factors(self) -> bool:
        """A folder with the factors that it started from lies beside it."""

    def has_file(self, path: str) -> bool:
        """It has a file of this path."""

    def shapes(self) -> Shapes | None:
        """Its tensors; None if they are not known yet."""


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
        description="Only check the inputs, and estimate what the job will take.",
    )

    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The revisions that the job reads, as `namespace/name[@revision]`."""

    def check(self, models: Sequence[KnownModel]) -> None:
        """Refuse a job that could only fail, by what the hub knows of its inputs already.

        models: those of `inputs`, in their order. It runs when the job is asked for and computes
        nothing; the job's steps check again. A MethodError, or an error of the hub's.
        """


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
        is_path = str(given).startswith((".", "/", "~"))
        way_out = ": push the folder first, and give its name in the hub" if is_path else ""
        return f"{where}{given!r} is no NAMESPACE/NAME{way_out}"
    if error["type"] == "string_pattern_mismatch":
        return f"{where}{given!r} is not of the form {limits['pattern']}"
    return f"{where}{error['msg']}, not {given!r}"

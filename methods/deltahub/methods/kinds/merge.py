"""The arguments of the job `merge`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from deltahub.methods.kinds.kind import Arguments, RepositoryName, RevisionName

# One checkpoint of all tasks.
Static = Literal["average", "task-arithmetic", "ties", "iso-c", "tsv-m"]
# The base, and something a task, which each branch is rebuilt from.
Switchable = Literal["emr", "bitdelta", "low-rank", "lossless"]
Method = Literal[
    "emr", "bitdelta", "low-rank", "lossless",
    "average", "task-arithmetic", "ties", "iso-c", "tsv-m",
    "compare",
]  # fmt: skip
Rescaler = Literal["l1", "mean-l1", "tensor-l1", "l2", "tensor-l2"]
COMPARE: Final = "compare"
# Method -> the fields that say how it works; those of compare are for the methods that it runs.
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "emr": ("rescaler", "lossless"),
    "average": ("scale",),
    "task-arithmetic": ("scale",),
    "ties": ("scale", "density"),
    "iso-c": ("scale",),
    "tsv-m": ("scale",),
    "low-rank": ("rank",),
    COMPARE: ("rescaler", "scale", "density", "rank", "budget", "eval"),
}
_ALL_OPTIONS: Final = ("rescaler", "lossless", "scale", "density", "rank", "budget", "eval")
# Characters of all examples together.
MAX_EVAL: Final = 1_000_000


class Example(BaseModel):
    """A question to a model, and the one right answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: str = Field(max_length=20_000)
    expected: str = Field(min_length=1, max_length=2000)
    task: str | None = Field(default=None, description="Only for this task; null: for all.")


class MergeArguments(Arguments):
    """Merge fine-tunes of one base into a new repository, or compare the methods to do so."""

    kind: ClassVar[str] = "merge"
    steps_version: ClassVar[int] = 2

    name: RepositoryName | None = Field(
        default=None,
        description="The new repository that holds the result. Only compare needs none.",
    )
    method: Method = Field(
        default="emr",
        description="How the fine-tunes are merged; compare makes nothing, and shows what each "
        "method would keep of them and take.",
    )
    base: RevisionName = Field(description="The model that all of them were fine-tuned from.")
    models: tuple[RevisionName, ...] = Field(
        min_length=2, max_length=256, description="The fine-tunes, two or more."
    )
    tasks: tuple[str, ...] | None = Field(
        default=None,
        description="The branch of each fine-tune in the result, in their order; by default the "
        "last part of its name.",
    )
    rescaler: Rescaler = Field(
        default="l1",
        description="emr: how a task's scale is chosen: l1 as in the paper, mean-l1 as in its "
        "code, or for each tensor, or the least squares.",
    )
    lossless: bool = Field(
        default=False,
        description="emr: each branch is its fine-tune bit for bit; main is the unified model.",
    )
    scale: float | None = Field(
        default=None,
        gt=0,
        le=10,
        description="Static methods: what the merged task vector is multiplied by; by default 0.3 "
        "for task-arithmetic, else 1.",
    )
    density: float = Field(
        default=0.2, gt=0, le=1, description="ties: the share of each task vector that is kept."
    )
    rank: int | None = Field(
        default=None,
        ge=1,
        description="low-rank: of each matrix; by default as many as take a tenth of its bytes.",
    )
    budget: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="compare: the most bytes that the result may take, in percent of the "
        "fine-tunes' files, such as 20%.",
    )
    eval: tuple[Example, ...] | None = Field(
        default=None,
        max_length=10_000,
        description="compare: examples that the models of each method answer; a file with one "
        "JSON object a line, which has input, expected, and the task if it is for one alone.",
    )
    exclude: tuple[Annotated[str, StringConstraints(max_length=200)], ...] = Field(
        max_length=32,
        default=(r"(^|\.)(classifier|score|lm_head_task|head)\.",),
        description="Regular expressions of tensor names that are not merged: each task keeps its "
        "own.",
    )

    @property
    def is_exact(self) -> bool:
        """Whether each branch is its fine-tune bit for bit."""
        return self.lossless or self.method == "lossless"

    @field_validator("budget", mode="before")
    @classmethod
    def _percent(cls, value: Any) -> Any:
        return value.strip().removesuffix("%") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name is None and self.method != COMPARE:
            raise ValueError(f"the method {self.method} needs the name of a new repository")
        if sum(len(each.input) + len(each.expected) for each in self.eval or ()) > MAX_EVAL:
            raise ValueError(f"eval has more than {MAX_EVAL} characters")
        fields = type(self).model_fields
        for name in _ALL_OPTIONS:
            is_set = getattr(self, name) != fields[name].default
            if is_set and name not in OPTIONS.get(self.method, ()):
                takers = [method for method, names in OPTIONS.items() if name in names]
                raise ValueError(
                    f"{name} says nothing to the method {self.method}, only to"
                    f" {', '.join(takers)}: leave it out"
                )
        if self.device.startswith("cuda") and self.eval is None:
            raise ValueError("device: merging runs on the CPU, and only compare with eval on a GPU")
        self._check_tasks()
        for pattern in self.exclude:
            try:
                re.compile(pattern)
            except re.error as exc:
                raise ValueError(f"exclude: {pattern!r} is no regular expression: {exc}") from exc
        return self

    def _check_tasks(self) -> None:
        if self.tasks is None:
            return
        if len(self.tasks) != len(self.models):
            n_models = len(self.models)
            raise ValueError(f"{len(self.tasks)} tasks for {n_models} models: name one for each")
        for number, task in enumerate(self.tasks):
            if task == "main":
                raise ValueError("no task is named main, which is the branch of the whole merge")
            if task in self.tasks[:number]:
                raise ValueError(f"two tasks have the name {task}: each is a branch of its own")

    def inputs(self) -> tuple[str, ...]:
        return (self.base, *self.models)

"""The arguments of the job `merge`."""

from typing import ClassVar, Literal

from pydantic import Field

from deltahub.methods.kinds.kind import Arguments, RevisionName

Method = Literal["emr"]
Rescaler = Literal["l1", "mean-l1", "tensor-l1", "l2", "tensor-l2"]


class MergeArguments(Arguments):
    """Merge fine-tunes of one base into a new repository."""

    kind: ClassVar[str] = "merge"
    steps_version: ClassVar[int] = 1

    method: Method = Field(default="emr", description="How the fine-tunes are merged.")
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
        description="How a task's scale is chosen: l1 as in the paper, mean-l1 as in its code, or "
        "for each tensor, or the least squares.",
    )
    exclude: tuple[str, ...] = Field(
        default=(r"(^|\.)(classifier|score|lm_head_task|head)\.",),
        description="Regular expressions of tensor names that are not merged: each task keeps its "
        "own.",
    )

    def inputs(self) -> tuple[str, ...]:
        return (self.base, *self.models)

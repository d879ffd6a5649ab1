"""The arguments of the job `convert_adapter`."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from deltahub.methods.kinds.kind import JobArguments, RevisionName
from deltahub.methods.kinds.pissa_init import FactorDtype


class ConvertAdapterArguments(JobArguments):
    """Convert an adapter that changed its base into a plain LoRA of the base itself.

    The result is a new commit on the adapter's main; the commit that was pushed keeps a tag.
    """

    kind: ClassVar[str] = "convert_adapter"
    steps_version: ClassVar[int] = 1

    adapter: RevisionName = Field(description="The adapter, at the head of its branch main.")
    base: RevisionName | None = Field(
        default=None,
        description="The model that the adapter was trained on; by default the base that it names.",
    )
    init: RevisionName | None = Field(
        default=None,
        description="The kit or adapter that it started from; by default that which the adapter "
        "names, its own folder of initial factors, or the base's weights.",
    )
    rank: int | None = Field(
        default=None, ge=1, le=8192, description="The rank of the result; by default twice its own."
    )
    error: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="In place of a rank: the smallest rank whose updates are within this relative "
        "error.",
    )
    dtype: FactorDtype = Field(default="F32", description="The dtype of the result.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rank is not None and self.error is not None:
            raise ValueError("give a rank or an error, not both")
        return self

    def inputs(self) -> tuple[str, ...]:
        return tuple(each for each in (self.adapter, self.base, self.init) if each is not None)

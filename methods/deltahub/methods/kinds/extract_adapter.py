"""The arguments of the job `extract_adapter`."""

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import Field, model_validator

from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.bases.pissa_init import FactorDtype
from deltahub.methods.kinds.kind import JobArguments, KnownModel, RepositoryName, RevisionName


class ExtractAdapterArguments(JobArguments):
    """Make a LoRA of a full fine-tune: the best low-rank approximation of what it changed."""

    kind: ClassVar[str] = "extract_adapter"
    steps_version: ClassVar[int] = 1

    model: RevisionName = Field(description="The fine-tune.")
    name: RepositoryName = Field(description="The new repository that holds the adapter.")
    base: RevisionName | None = Field(
        default=None,
        description="The model that it was fine-tuned from; by default the base that it names.",
    )
    rank: int | None = Field(
        default=None, ge=1, le=1024, description="The rank of each matrix; by default 16."
    )
    error: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="In place of a rank: the smallest one that keeps all matrices together within "
        "this relative error.",
    )
    targets: tuple[str, ...] | None = Field(
        default=None,
        max_length=64,
        description="The last part of the names of the adapted modules, such as q_proj; by default "
        "all matrices in the model's layers.",
    )
    dtype: FactorDtype = Field(default="F32", description="The dtype of the adapter.")
    private: bool | None = Field(
        default=None,
        description="Whether the adapter is private. By default it is if one of its inputs is.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rank is not None and self.error is not None:
            raise ValueError("give a rank or an error, not both")
        return self

    def inputs(self) -> tuple[str, ...]:
        return (self.model,) if self.base is None else (self.model, self.base)

    def check(self, models: Sequence[KnownModel]) -> None:
        model = models[0]
        if model.is_adapter:
            raise CannotAdapt(f"{model.title} is an adapter already: name a full fine-tune")
        if self.base is None:
            model.require_base()

"""The arguments of the job `pissa_init`."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.kind import (
    JobArguments,
    KnownModel,
    RepositoryName,
    RevisionName,
    Shapes,
)
from deltahub.methods.kinds.weights.targets import modules_of

FactorDtype = Literal["F32", "BF16", "F16"]


class PissaInitArguments(JobArguments):
    """Make an init kit of a base: the factors that PiSSA adapters of one rank start from."""

    kind: ClassVar[str] = "pissa_init"
    steps_version: ClassVar[int] = 1

    base: RevisionName = Field(description="The model whose principal directions are found.")
    name: RepositoryName | None = Field(
        default=None,
        description="The new repository that holds the kit; by default NAMESPACE/BASE-pissa-rRANK. "
        "A kit that the hub has already is not made again.",
    )
    rank: int = Field(default=16, ge=1, le=4096, description="The rank of each adapted matrix.")
    alpha: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="lora_alpha of adapters; by default the rank, as in the paper.",
    )
    targets: tuple[str, ...] | None = Field(
        default=None,
        max_length=64,
        description="The last part of the names of the adapted modules, such as q_proj; by default "
        "all matrices in the model's layers.",
    )
    niter: int = Field(
        default=8,
        ge=0,
        le=64,
        description="Iterations of the randomized decomposition, each of which reads a weight "
        "twice.",
    )
    exact: bool = Field(
        default=False, description="Decompose exactly, which takes much longer for large weights."
    )
    dtype: FactorDtype = Field(
        default="F32", description="The dtype of the factors: that which adapters are trained in."
    )
    quant: Literal["nf4"] | None = Field(
        default=None,
        description="QPiSSA: the residual of the base will be quantized to NF4, and the factors "
        "also take up what that loses.",
    )
    iters: int = Field(
        default=5,
        ge=1,
        le=20,
        description="QPiSSA: how many times factors and quantized residual are fitted in turn.",
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="Of the randomized method.")
    private: bool | None = Field(
        default=None,
        description="Whether the kit is private. By default it is if the base is.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        fields = type(self).model_fields
        if self.quant is None and self.iters != fields["iters"].default:
            raise ValueError("iters is of QPiSSA: give quant too, or leave iters out")
        if self.exact and self.niter != fields["niter"].default:
            raise ValueError("niter is of the randomized method: leave it or exact out")
        return self

    @property
    def scale(self) -> float:
        """s, which B A is multiplied by."""
        return (self.rank if self.alpha is None else self.alpha) / self.rank

    def inputs(self) -> tuple[str, ...]:
        return (self.base,)

    def check(self, models: Sequence[KnownModel]) -> None:
        (base,) = models
        if base.is_adapter:
            raise CannotAdapt(f"{base.title} is an adapter: name the model that it belongs to")
        shapes = base.shapes()
        if shapes:
            self.check_rank(shapes, modules_of(shapes, self.targets, base.title), base.title)

    def check_rank(self, shapes: Shapes, modules: Sequence[str], title: str) -> None:
        """CannotAdapt if a module's matrix is smaller than the rank."""
        for module in modules:
            rows, columns = shapes[f"{module}.weight"][1]
            if self.rank > min(rows, columns):
                raise CannotAdapt(
                    f"rank {self.rank} does not fit to {module} of {title}, which is {rows} x"
                    f" {columns}: choose at most {min(rows, columns)}, or leave it out by targets"
                )

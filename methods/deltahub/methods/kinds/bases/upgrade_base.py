"""The arguments of the job `upgrade_base`."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.kinds.kind import JobArguments, KnownModel, RevisionName
from deltahub.methods.kinds.transfer_adapter import RungName


class UpgradeBaseArguments(JobArguments):
    """Plan how the adapters of a base move to a newer one, and begin it if the policy is auto.

    Each adapter gets a plan: the ways that apply, what they cost, and what is missing. Moves are
    jobs of the kind transfer_adapter. `deltahub base put-back` takes all of them back.
    """

    kind: ClassVar[str] = "upgrade_base"
    steps_version: ClassVar[int] = 2
    only_reads: ClassVar[bool] = True

    base: RevisionName = Field(description="The newer base.")
    from_base: RevisionName = Field(description="The base that the adapters have now.")
    policy: Literal["auto", "ask", "off"] | None = Field(
        default=None,
        description="auto: begin every move at once. ask: wait for an approval. off: make no plan,"
        " and propose none for the old base any more. By default as the old base's rule says.",
    )
    rungs: tuple[RungName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=5,
        description="The ways to try, as in a move of one adapter. By default all that apply.",
    )
    n: int | None = Field(
        default=None, ge=5, le=100_000, description="Inputs of each move, as in a move of one."
    )
    max_loss: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Accuracy that a published adapter may lose at most, at 95 %.",
    )
    epochs: int | None = Field(
        default=None, ge=1, le=1_000, description="Of adapters that are trained; by default 20."
    )
    learning_rate: float | None = Field(
        default=None, gt=0, le=1, description="Of adapters that are trained; by default 2e-5."
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="Of all random numbers.")
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda:[0-9]{1,2})$",
        description="Where models run: cpu, or a GPU such as cuda:0; auto takes a GPU if there is"
        " one.",
    )
    source: Literal["asked", "card", "weights"] = Field(
        default="asked",
        description="Why there is this upgrade: the hub says card or weights for one that it"
        " proposes by itself.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rungs is not None and len(set(self.rungs)) < len(self.rungs):
            raise ValueError("rungs: a way is named twice")
        return self

    def inputs(self) -> tuple[str, ...]:
        return (self.base, self.from_base)

    def check(self, models: Sequence[KnownModel]) -> None:
        for model in models:
            if model.is_adapter:
                raise CannotTransfer(f"{model.title} is an adapter: name two bases")
            if model.is_export:
                raise CannotTransfer(
                    f"{model.title} is an export: name the model that it was made from"
                )
        if models[0].name == models[1].name:
            raise CannotTransfer(
                f"both bases are {models[0].name}: push the newer one to a repository of its own,"
                " so that the adapters of the older one keep their base"
            )

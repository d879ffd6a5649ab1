"""The arguments of the job `transfer_adapter`."""

from collections.abc import Sequence
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.kinds.kind import (
    TEXT_FILE,
    Arguments,
    KnownModel,
    RepositoryName,
    RevisionName,
)

RungName = Literal["freeze", "copy", "activation_map", "trans_lora", "titok"]
"""A way to move an adapter, the cheapest first (transfer/measures/gate.py)."""

LEAST_PROMPTS: Final = 5
_MOST_PROMPTS: Final = 64
# Inputs of one move that are drawn, judged and kept in memory.
MOST_DRAWS: Final = 2_000_000


class TransferAdapterArguments(Arguments):
    """Move an adapter to another base: by every way that applies, of which the best is kept.

    The result is published only if it answers like the old adapter on inputs that no way has seen.
    """

    kind: ClassVar[str] = "transfer_adapter"
    steps_version: ClassVar[int] = 2

    adapter: RevisionName = Field(description="The adapter, as it is on its own base.")
    base: RevisionName = Field(description="The model that it moves to.")
    name: RepositoryName = Field(description="The new repository that holds the result.")
    source_base: RevisionName | None = Field(
        default=None,
        description="The model that the adapter was trained on; by default the base that it names.",
    )
    rungs: tuple[RungName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=5,
        description="The ways to try: freeze (it stays where it is), copy, activation_map,"
        " trans_lora, titok. By default all that apply.",
    )
    pool: tuple[RevisionName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="Adapters of the same task, in the same namespace, with kits: inputs are made"
        " up from the seeds of these kits by turns, once for all moves to the base that name them."
        " They may have the adapter itself among them. An upgrade of a base finds them.",
    )
    prompts: str | None = Field(
        default=None,
        min_length=1,
        max_length=1 << 20,
        description="For an adapter without a kit: a text file with 5 to 64 inputs of its task, one"
        " a line, without answers. New inputs are made up like them.",
        json_schema_extra={**TEXT_FILE},
    )
    template: str = Field(
        default="{input}",
        max_length=4_000,
        description="With prompts: what the model is given; {input} stands for the input.",
    )
    max_new_tokens: int = Field(
        default=64,
        ge=1,
        le=4_096,
        description="With prompts: tokens of an answer at most. A kit has its own number.",
    )
    student: Literal["lora", "dora"] | None = Field(
        default=None, description="The kind of adapter that is trained; by default that it has now."
    )
    rank: int | None = Field(
        default=None,
        ge=1,
        le=4_096,
        description="The rank of a trained adapter; by default that of the old one.",
    )
    start: Literal["auto", "fresh"] = Field(
        default="auto",
        description="What a trained adapter begins as. auto: the result of copy or activation_map,"
        " if one was tried and surely answers like the old adapter more often than the new base"
        " alone; else fresh: an adapter that changes nothing.",
    )
    epochs: int | None = Field(
        default=None, ge=1, le=1_000, description="Of the training; by default 20."
    )
    learning_rate: float | None = Field(
        default=None, gt=0, le=1, description="Of the training; by default 2e-5."
    )
    n: int | None = Field(
        default=None,
        ge=5,
        le=100_000,
        description="Inputs that are made up and kept, of which a fifth only measures; by default"
        " as many as the kit had examples, or 250.",
    )
    budget: int = Field(
        default=20,
        ge=1,
        le=1_000,
        description="Inputs that are drawn at most, in times of n; together at most"
        f" {MOST_DRAWS:,}.",
    )
    max_loss: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Accuracy that a published result may lose at most, at 95 %.",
    )
    compressed: bool | None = Field(
        default=None,
        description="Hold the old base compressed while it judges and answers: it takes less memory"
        " and longer, and computes the same. By default only if it would not fit otherwise.",
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="Of all random numbers.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rungs is not None and len(set(self.rungs)) < len(self.rungs):
            raise ValueError("rungs: a way is named twice")
        if (
            self.prompts is not None
            and not LEAST_PROMPTS <= len(self.inputs_given) <= _MOST_PROMPTS
        ):
            raise ValueError(
                f"prompts has {len(self.inputs_given)} different lines: give {LEAST_PROMPTS} to"
                f" {_MOST_PROMPTS} inputs, one a line"
            )
        if self.template.count("{input}") != 1:
            raise ValueError("template has {input} once, where the input stands")
        if self.n is not None and self.n * self.budget > MOST_DRAWS:
            raise ValueError(
                f"n x budget is {self.n * self.budget:,} draws, and a move makes at most"
                f" {MOST_DRAWS:,}: lower n or budget"
            )
        if self.prompts is not None and self.pool is not None:
            raise ValueError("prompts show the task by themselves: give them or pool, not both")
        fields = type(self).model_fields
        for name in ("template", "max_new_tokens"):
            if self.prompts is None and getattr(self, name) != fields[name].default:
                raise ValueError(f"{name} is of prompts: give these too, or leave it out")
        return self

    @property
    def inputs_given(self) -> tuple[str, ...]:
        """The different lines of `prompts`."""
        lines = (each.strip() for each in (self.prompts or "").splitlines())
        return tuple(dict.fromkeys(each for each in lines if each))

    def tries(self, rung: RungName) -> bool:
        """Whether this way is to be tried."""
        return self.rungs is None or rung in self.rungs

    def inputs(self) -> tuple[str, ...]:
        own = (self.adapter, self.base)
        source = () if self.source_base is None else (self.source_base,)
        return (*own, *source, *(self.pool or ()))

    def check(self, models: Sequence[KnownModel]) -> None:
        adapter, base = models[0], models[1]
        if not adapter.is_adapter:
            raise CannotTransfer(
                f"{adapter.title} is no adapter: it is a full model, which no base is needed for"
            )
        others = models[2 : 3 if self.source_base is not None else 2]
        for each in models[2 + len(others) :]:
            if not each.is_adapter:
                raise CannotTransfer(
                    f"{each.title} is no adapter: pool names some whose kits show the same task"
                )
        for model in (base, *others):
            if model.is_adapter:
                raise CannotTransfer(
                    f"{model.title} is an adapter: name the model that it belongs to"
                )
            if model.is_export:
                raise CannotTransfer(
                    f"{model.title} is an export: name the model that it was made from"
                )
        source = others[0] if others else adapter.require_base()
        if source.title == base.title:
            raise CannotTransfer(f"{adapter.title} belongs to {base.title} already")
        report = adapter.report
        if report is None:
            return
        if report["state"] in ("quarantined", "broken"):
            faults = "; ".join(report["faults"]) or report["why"]
            raise CannotTransfer(
                f"{adapter.title} is {report['state']}: {faults}. {report['way_out']}"
            )
        if report["state"] == "convertible":
            raise CannotTransfer(
                f"{adapter.title} was started by {report['init']}, which changed its base: convert"
                f" it to a plain LoRA first (deltahub adapter convert {adapter.name})"
            )

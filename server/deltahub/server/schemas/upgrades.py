"""What is told of upgrades of bases, and how they are decided on."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from deltahub.methods.kinds.transfer_adapter import TransferAdapterArguments
from deltahub.server.schemas.base import In, Out


class UpgradeOut(Out):
    id: int
    old: str = Field(description="the base that is left, by its name of today")
    new: str
    old_commit: str = Field(description="when the plan was last made")
    new_commit: str
    source: str = Field(
        description="asked; or card or weights, if the hub has proposed it by itself"
    )
    policy: str = Field(description="of the last plan: auto or ask")
    state: str = Field(
        description="proposed: an adapter waits for a decision; running; done; put_back; rejected"
    )
    user: str | None = Field(description="who asked for it, or pushed what it was proposed for")
    created_at: datetime
    counts: Mapping[str, int] = Field(
        description="state -> number of adapters, of those that the caller may read"
    )
    may_decide: bool


class UpgradesOut(Out):
    items: list[UpgradeOut]


class RungOut(Out):
    rung: str = Field(description="freeze, copy, activation_map, trans_lora or titok")
    seconds: float | None = Field(default=None, description="about")
    memory_bytes: int | None = Field(default=None, description="at most")
    device: str | None = None
    why_not: str | None = Field(default=None, description="why this way does not apply")


class MoveOut(Out):
    adapter: str
    adapter_commit: str
    teacher: str | None = Field(
        description="what the move starts from: the adapter, or the original that it was moved from"
        " before; for those who may decide"
    )
    state: str = Field(
        description="proposed, approved, rejected, queued (its job waits for its turn), running,"
        " published, kept (on the old base, by measurement), failed or put_back"
    )
    rungs: list[RungOut] = Field(description="as planned")
    measured: list[dict[str, Any]] = Field(description="of each way, by the job; docs/upgrades.md")
    seconds: float | None
    memory_bytes: int | None
    device: str | None
    missing: list[str] = Field(description="what the adapter lacks, such as a kit")
    notes: list[str]
    why_not: str | None = Field(description="why it cannot be approved")
    needs_prompts: bool = Field(
        description="it has no kit, and can be approved with inputs of its task"
    )
    chosen: str | None = Field(description="the way that was taken")
    agreed: dict[str, Any] | None = Field(
        description="{value, low, high}: the share of answers like the old adapter's, at 95 %"
    )
    job_id: str | None
    result: str | None = Field(description="the repository that was made")
    result_commit: str | None
    why: str | None = Field(description="why it failed, was kept, or is not put back")
    changed_at: datetime
    may_decide: bool


class UpgradeDetailOut(UpgradeOut):
    adapters: list[MoveOut]


class RejectIn(In):
    adapters: list[Annotated[str, Field(max_length=200)]] | None = Field(
        default=None, max_length=1000, description="NAMESPACE/NAME of each; null for all"
    )


class ApproveIn(RejectIn):
    prompts: str | None = Field(
        default=None,
        min_length=1,
        max_length=1 << 20,
        description="for one adapter, which is named and lacks a kit: 5 to 64 inputs of its task,"
        " one a line, without answers",
    )

    template: str | None = Field(
        default=None,
        max_length=4_000,
        description="with prompts: what the model is given; {input} stands for the input",
    )
    max_new_tokens: int | None = Field(
        default=None, ge=1, le=4_096, description="with prompts: tokens of an answer at most"
    )

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        # By the rules of the job that takes them.
        task = self.task or {}
        TransferAdapterArguments(adapter="a/b", base="a/c", name="a/d", **task)
        return self

    @property
    def task(self) -> dict[str, Any] | None:
        """The arguments of the job that show an adapter's task; None if none is given."""
        names = ("prompts", "template", "max_new_tokens")
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None} or None


class DecidedOut(Out):
    adapters: list[str] = Field(description="on which was decided now")
    n_left: int = Field(description="proposed adapters that cannot be approved")


class KeptOut(Out):
    adapter: str
    result: str | None
    why: str


class PutBackOut(Out):
    deleted: list[str] = Field(description="results")
    cancelled: list[str] = Field(description="adapters whose move was stopped")
    kept: list[KeptOut] = Field(description="results that stay")
    n_others: int = Field(description="adapters on which the caller may not decide")


class UpgradePolicyIn(In):
    policy: Literal["ask", "auto", "off", "inherit"] = Field(
        description="ask: upgrades that the hub proposes wait for an approval; auto: those that a"
        " model card tells of begin at once; off: none is proposed; inherit: no policy of its own"
    )


class UpgradePolicyOut(Out):
    policy: str = Field(description="ask, auto or off")
    source: Literal["repository", "namespace", "default"] = Field(
        description="whose policy it is; default: neither has one"
    )

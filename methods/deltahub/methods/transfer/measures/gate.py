"""Which way of moving an adapter is taken, and whether its result is published."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.transfer.measures.agreement import promised_accuracy
from deltahub.methods.transfer.measures.intervals import Share

MAX_LOSS: Final = 0.1


class Rung(StrEnum):
    """A way to move an adapter, the cheapest first."""

    FREEZE = "freeze"  # the adapter stays on the old base
    COPY = "copy"
    ACTIVATION_MAP = "activation_map"
    TRANS_LORA = "trans_lora"
    TITOK = "titok"


_COST: Final = {rung: place for place, rung in enumerate(Rung)}


class Decision(BaseModel):
    """Whether a result is published, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    is_published: bool
    promise: float | None = Field(
        description="The accuracy that the result has at least, at 95 %; null if the accuracy of"
        " the source is not known, or no working discriminator has filtered the inputs."
    )
    reasons: tuple[str, ...]


def decide(
    agreed: Share, base: Share, source_accuracy: float | None, max_loss: float = MAX_LOSS
) -> Decision:
    """Publish a result that is surely better than the new base alone, and loses at most `max_loss`
    of accuracy.

    agreed, base: agreement with the teacher, of the result and of the new base without an adapter.
    The loss is at most 1 - a_lower, which needs no labels; with the source's own accuracy, it gives
    the promise.
    """
    reasons = []
    is_better = agreed.lower > base.upper
    if is_better:
        reasons.append(f"it agrees with the old adapter in {agreed}; the new base alone in {base}")
    elif base.value >= agreed.value:
        reasons.append(
            f"the new base alone agrees with the old adapter in {base}, which is no less than the"
            f" result's {agreed}: the result adds nothing"
        )
    else:
        reasons.append(
            f"the bounds of its agreement, {agreed}, and of the new base alone, {base}, overlap:"
            " more inputs would tell them apart"
        )
    loss = 1 - agreed.lower
    is_close = loss <= max_loss
    promise = None
    if source_accuracy is not None:
        promise = promised_accuracy(source_accuracy, agreed.lower)
    limit = "at most" if is_close else "more than"
    reasons.append(
        f"it may lose up to {loss:.1%} of accuracy, which is {limit} the allowed {max_loss:.1%}"
    )
    return Decision(is_published=is_better and is_close, promise=promise, reasons=tuple(reasons))


def choose(measured: Sequence[tuple[Rung, Share]]) -> Rung:
    """The cheapest way whose agreement is not surely worse than the best one's.

    That is the one with the highest agreement, or a cheaper one whose agreement is at least the
    lower bound of the highest. FREEZE moves nothing, so it is no candidate; it is the answer if
    nothing was measured.
    """
    moved = [(rung, share) for rung, share in measured if rung is not Rung.FREEZE]
    if not moved:
        return Rung.FREEZE
    best = max(moved, key=lambda each: (each[1].value, -_COST[each[0]]))[1]
    near = [rung for rung, share in moved if share.value >= best.lower]
    return min(near, key=_COST.__getitem__)


def choose_start(ports: Sequence[tuple[Rung, Share]], base: Share) -> Rung | None:
    """What a student starts from: the cheapest good way without a training, among those that surely
    agree with the teacher more often than the new base alone; None for a fresh start.

    A fresh adapter changes nothing, so that it answers like the new base alone.
    """
    better = [(rung, share) for rung, share in ports if share.lower > base.upper]
    return choose(better) if better else None

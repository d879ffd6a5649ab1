"""How well a discriminator tells a task's own inputs from a model's inventions."""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.measures.intervals import Z_95, area_error, area_under_curve

Item = TypeVar("Item")

HELD_OUT_SHARE: Final = 0.2
_LEAST: Final = 5
_N_THRESHOLDS: Final = 11


class Threshold(BaseModel):
    """What a stricter or laxer filter would keep of the held-out inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    margin: float = Field(description="The least log p(yes) - log p(no) that is kept.")
    real_kept: float
    synthetic_kept: float


class DiscriminatorReport(BaseModel):
    """How a discriminator did on inputs that it was not trained on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    auc: float = Field(
        ge=0,
        le=1,
        description="Area under the ROC curve. The best epoch was chosen by it, so it is a little"
        " too high.",
    )
    auc_error: float = Field(description="Its standard error.")
    epoch: int = Field(description="The epoch that was kept, from 1.")
    n_trained: int = Field(description="Inputs that it was trained on.")
    n_real: int = Field(description="Held-out inputs of the task.")
    n_synthetic: int = Field(description="Held-out inputs that the base made up.")
    loss: float = Field(
        ge=0,
        description="Held-out cross-entropy of yes and no, in nats; it decides among epochs"
        " of one area.",
    )
    has_single_labels: bool = Field(
        description="Whether yes and no are one token each; otherwise their first different tokens"
        " are compared."
    )
    thresholds: tuple[Threshold, ...]

    @property
    def lower(self) -> float:
        """The 95 % bound below the area."""
        return max(0.0, self.auc - Z_95 * self.auc_error)

    def require_better_than_chance(self) -> None:
        """CannotTransfer if its held-out area may as well be that of guesses."""
        if self.lower <= 0.5:
            raise CannotTransfer(
                f"the discriminator guesses: its held-out AUC is {self.auc:.2f}, with a lower bound"
                f" of {self.lower:.2f}, and must be surely above 0.5. Its filter would keep any"
                " text. Give more examples, train it longer, or raise its learning rate"
            )

    def sentences(self) -> list[str]:
        """What a person should know of it."""
        zero = next(each for each in self.thresholds if each.margin == 0)
        lines = [
            f"the discriminator's AUC is {self.auc:.3f} (standard error {self.auc_error:.3f}) on"
            f" {self.n_real} inputs of the task and {self.n_synthetic} made-up ones that it was"
            f" not trained on: it keeps {zero.real_kept:.0%} of the former and"
            f" {zero.synthetic_kept:.0%} of the latter"
        ]
        if not self.has_single_labels:
            lines.append(
                "yes and no are no single tokens in this tokenizer: the first tokens in which they"
                " differ are compared"
            )
        return lines


def measure(
    real: Sequence[float],
    synthetic: Sequence[float],
    *,
    epoch: int,
    n_trained: int,
    has_single_labels: bool,
) -> DiscriminatorReport:
    """The report, from the margins of held-out inputs."""
    area = area_under_curve(real, synthetic)
    margins = sorted([*real, *synthetic])
    steps = [
        margins[round(i * (len(margins) - 1) / (_N_THRESHOLDS - 1))] for i in range(_N_THRESHOLDS)
    ]
    return DiscriminatorReport(
        auc=area,
        auc_error=area_error(area, len(real), len(synthetic)),
        epoch=epoch,
        n_trained=n_trained,
        n_real=len(real),
        n_synthetic=len(synthetic),
        loss=_loss([*real, *(-each for each in synthetic)]),
        has_single_labels=has_single_labels,
        thresholds=tuple(
            Threshold(
                margin=margin,
                real_kept=sum(each > margin for each in real) / len(real),
                synthetic_kept=sum(each > margin for each in synthetic) / len(synthetic),
            )
            for margin in sorted({0.0, *(round(step, 6) for step in steps)})
        ),
    )


def _loss(margins: Sequence[float]) -> float:
    """The mean of log(1 + exp(-margin)), without an overflow."""
    costs = [max(-each, 0.0) + math.log1p(math.exp(-abs(each))) for each in margins]
    return math.fsum(costs) / len(costs)


def split(items: Sequence[Item], seed: int, what: str) -> tuple[list[Item], list[Item]]:
    """(trained on, held out), 80 to 20, at least one held out; the same for the same seed.

    what: the items, in a message. CannotTransfer for fewer than five.
    """
    if len(items) < _LEAST:
        raise CannotTransfer(
            f"a discriminator needs at least {_LEAST} {what}, not {len(items)}: give more examples"
        )
    order = list(items)
    random.Random(f"{seed}/{what}").shuffle(order)
    n_held_out = max(1, round(len(order) * HELD_OUT_SHARE))
    return order[n_held_out:], order[:n_held_out]


def balanced(real: Sequence[Item], synthetic: Sequence[Item], seed: int) -> Iterator[Item]:
    """One epoch: both in turn, each in a random order; the shorter is repeated."""
    rng = random.Random(seed)
    n = max(len(real), len(synthetic))
    orders = []
    for items in (real, synthetic):
        order: list[Item] = []
        while len(order) < n:
            order += rng.sample(items, len(items))
        orders.append(order[:n])
    for one, other in zip(*orders, strict=True):
        yield one
        yield other

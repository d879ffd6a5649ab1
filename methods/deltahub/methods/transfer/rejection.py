"""Rejection sampling: new inputs are drawn until enough of them pass, or a budget is spent.

Trans-LoRA (arXiv 2405.17258), section 3.2: an input is kept if the discriminator finds yes more
likely than no. The budget, and what counts as a copy, are ours.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.errors import CannotTransfer

BUDGET_TIMES: Final = 20
# Below this share, the seeds show the task too narrowly, or the generator cannot follow a list.
LOW_ACCEPTANCE: Final = 0.02

Draw = Callable[[int], Sequence[str]]
"""number of the call -> new inputs"""
Margins = Callable[[Sequence[str]], Sequence[float]]
"""inputs -> log p(yes) - log p(no) of each"""


class SamplingReport(BaseModel):
    """How many inputs were drawn, and what became of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wanted: int = Field(description="Inputs that were asked for.")
    budget: int = Field(description="Inputs that could be drawn at most.")
    drawn: int = Field(description="Inputs that were drawn; a call without any counts as one.")
    seed_copies: int = Field(description="Drawn inputs that were one of the seeds.")
    duplicates: int = Field(description="Drawn inputs that had been drawn before.")
    judged: int = Field(description="Inputs that the discriminator was asked about.")
    accepted: int = Field(description="Of these, the inputs that it took for the task's.")
    shared: int = Field(
        default=0,
        description="Drawn inputs that were made up for all adapters of the task together.",
    )
    is_judged: bool = Field(
        default=True, description="Whether a discriminator judged; else all new ones are accepted."
    )
    yes_histogram: tuple[int, ...] = Field(
        description="Judged inputs by p(yes) / (p(yes) + p(no)), in ten equal steps."
    )

    @property
    def acceptance(self) -> float:
        """The share of judged inputs that were accepted."""
        return self.accepted / self.judged if self.judged else 0.0

    @property
    def is_refused(self) -> bool:
        """Whether the discriminator was asked, and accepted nothing."""
        return self.is_judged and self.judged > 0 and self.accepted == 0

    @property
    def is_complete(self) -> bool:
        return self.accepted >= self.wanted

    def sentences(self) -> list[str]:
        """What a person should know of it."""
        verdict = (
            f"the discriminator accepted {self.acceptance:.1%} of {self.judged} new ones"
            if self.is_judged
            else f"{self.judged} were new, which no discriminator has judged"
        )
        lines = [
            f"{min(self.accepted, self.wanted)} of {self.wanted} inputs were found in"
            f" {self.drawn} draws: {verdict};"
            f" {self.duplicates} were duplicates, and {self.seed_copies} copies of seeds"
        ]
        if self.shared:
            lines.append(
                f"{self.shared} of the draws were made up once for several adapters of the task"
            )
        if not self.is_complete:
            lines.append(f"the budget of {self.budget} draws is spent")
        if self.judged and self.acceptance < LOW_ACCEPTANCE:
            lines.append(
                f"less than {LOW_ACCEPTANCE:.0%} were accepted: a kit with more seeds (15 in place"
                " of 5) shows the task better"
            )
        return lines


class Rejection(BaseModel):
    """The state of one sampling, which can be stored between two steps and taken up again.

    Without a discriminator's judgement every new input is accepted (`margins` of None).
    """

    model_config = ConfigDict(extra="forbid")

    wanted: int = Field(ge=1)
    budget: int = Field(ge=1)
    seeds: tuple[str, ...]
    accepted: list[str] = []
    seen: set[str] = set()
    calls: int = 0
    drawn: int = 0
    seed_copies: int = 0
    duplicates: int = 0
    judged: int = 0
    n_passed: int = 0
    yes_histogram: list[int] = [0] * 10
    is_judged: bool = True

    @classmethod
    def start(cls, seeds: Sequence[str], wanted: int, times: int = BUDGET_TIMES) -> Self:
        """A sampling of `wanted` inputs in at most `times` as many draws."""
        return cls(wanted=wanted, budget=times * wanted, seeds=tuple(seeds))

    @property
    def is_done(self) -> bool:
        return len(self.accepted) >= self.wanted or self.drawn >= self.budget

    def take(self, drawn: Sequence[str]) -> list[str]:
        """Count the inputs of one call, as far as the budget goes; those that are new."""
        self.calls += 1
        left = self.budget - self.drawn
        self.drawn += min(max(len(drawn), 1), left)
        copies = {_key(seed) for seed in self.seeds}
        fresh = []
        for text in drawn[:left]:
            key = _key(text)
            if key in copies:
                self.seed_copies += 1
            elif key in self.seen:
                self.duplicates += 1
            else:
                self.seen.add(key)
                fresh.append(text)
        return fresh

    def judge(self, fresh: Sequence[str], margins: Sequence[float] | None) -> None:
        """Accept the inputs that are yes rather than no, up to as many as are wanted."""
        if margins is None:
            self.is_judged = False
            margins = [float("inf")] * len(fresh)
        for text, margin in zip(fresh, margins, strict=True):
            self.judged += 1
            if self.is_judged:
                self.yes_histogram[_tenth(margin)] += 1
            if margin > 0:
                self.n_passed += 1
                if len(self.accepted) < self.wanted:
                    self.accepted.append(text)

    def report(self) -> SamplingReport:
        """What was drawn until now."""
        return SamplingReport(
            wanted=self.wanted,
            budget=self.budget,
            drawn=self.drawn,
            seed_copies=self.seed_copies,
            duplicates=self.duplicates,
            judged=self.judged,
            accepted=self.n_passed,
            is_judged=self.is_judged,
            yes_histogram=tuple(self.yes_histogram),
        )

    def require_any(self, least: int = 1) -> None:
        """CannotTransfer if fewer than `least` inputs were accepted."""
        if len(self.accepted) < least:
            told = "; ".join(self.report().sentences())
            raise CannotTransfer(
                f"a transfer needs at least {least} accepted inputs: {told}. Make the kit again"
                " with more seeds, or raise the budget"
            )


def sample(state: Rejection, draw: Draw, margins: Margins | None) -> Rejection:
    """Draw and judge until enough inputs are accepted or the budget is spent; the same state."""
    while not state.is_done:
        fresh = state.take(draw(state.calls))
        if fresh:
            state.judge(fresh, margins(fresh) if margins is not None else None)
    return state


def _key(text: str) -> str:
    """Inputs that differ in white space alone are the same input."""
    return " ".join(text.split())


def _tenth(margin: float) -> int:
    """Which tenth of [0, 1] the logistic function of a margin is in, without an overflow."""
    if margin >= 0:
        share = 1 / (1 + math.exp(-min(margin, 700)))
    else:
        share = math.exp(max(margin, -700)) / (1 + math.exp(max(margin, -700)))
    return min(int(share * 10), 9)

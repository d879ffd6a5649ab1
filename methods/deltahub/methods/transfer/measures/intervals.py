"""How sure a share is: bounds of a proportion, and of the area under a discriminator's curve."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

# Of a normal distribution, for 95 % on both sides together.
Z_95: Final = 1.959963984540054
# So few cases that their bounds need a word.
FEW: Final = 20
_COMPUTED: Final = ("value", "lower", "upper")


class Share(BaseModel):
    """A share of n cases with its 95 % bounds, which its JSON tells, too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int = Field(ge=0)
    hits: int = Field(ge=0)

    @model_validator(mode="before")
    @classmethod
    def _only_counts(cls, given: Any) -> Any:
        """What follows from the counts is computed again."""
        if not isinstance(given, Mapping):
            return given
        return {key: each for key, each in given.items() if key not in _COMPUTED}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def value(self) -> float:
        return self.hits / self.n if self.n else 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def lower(self) -> float:
        return wilson_bounds(self.hits, self.n)[0]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def upper(self) -> float:
        return wilson_bounds(self.hits, self.n)[1]

    def caution(self) -> str | None:
        """What the bounds of so few cases mean, in a sentence; None for more of them."""
        if not 0 < self.n <= FEW:
            return None
        cases = "1 input" if self.n == 1 else f"{self.n} inputs"
        lowest = wilson_bounds(self.n, self.n)[0]
        return (
            f"only {cases} measured it, so the bounds are wide: even if every answer agreed,"
            f" a true agreement of {lowest:.0%} could not be ruled out"
        )

    def __str__(self) -> str:
        return f"{self.value:.1%} (95 % bounds {self.lower:.1%} to {self.upper:.1%}, n = {self.n})"


def wilson_bounds(hits: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """The bounds of a proportion of which `hits` in n were seen; (0, 1) for n = 0.

    Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
    American Statistical Association 22, 1927: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n).
    """
    if n == 0:
        return 0.0, 1.0
    share, extra = hits / n, z * z / n
    middle = (share + extra / 2) / (1 + extra)
    half = z * math.sqrt(share * (1 - share) / n + extra / (4 * n)) / (1 + extra)
    return max(0.0, middle - half), min(1.0, middle + half)


def area_under_curve(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """The probability that a positive scores above a negative; equal scores count half.

    This is the area under the ROC curve (Hanley and McNeil, "The meaning and use of the area under
    a receiver operating characteristic curve", Radiology 143, 1982), by ranks.
    """
    n, m = len(positives), len(negatives)
    ordered = sorted([(each, 1) for each in positives] + [(each, 0) for each in negatives])
    ranks, at = 0.0, 0
    while at < len(ordered):
        end = at
        while end < len(ordered) and ordered[end][0] == ordered[at][0]:
            end += 1
        middle = (at + 1 + end) / 2
        ranks += middle * sum(is_positive for _, is_positive in ordered[at:end])
        at = end
    return (ranks - n * (n + 1) / 2) / (n * m)


def area_error(area: float, n_positives: int, n_negatives: int) -> float:
    """The standard error of an area, by the same paper's exponential approximation."""
    first, second = area / (2 - area), 2 * area * area / (1 + area)
    square = (
        area * (1 - area)
        + (n_positives - 1) * (first - area * area)
        + (n_negatives - 1) * (second - area * area)
    )
    return math.sqrt(max(square, 0.0) / (n_positives * n_negatives))

"""How far a new model says what the old one said, and what that promises of its accuracy.

The bound: where both models give one answer, both are right or both are wrong. On the prompts'
own distribution their accuracies therefore differ by at most the share of disagreements.
"""

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.measures.intervals import Share

MOST_DISAGREEMENTS: Final = 50
_LONGEST_SHOWN: Final = 2_000


class Disagreement(BaseModel):
    """One prompt that both models answer differently."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str
    teacher: str
    student: str


class Flips(BaseModel):
    """What changed for users between an old and a new model, against expected answers.

    Echterhoff et al., "MUSCLE: A Model Update Strategy for Compatible LLM Evolution", EMNLP 2024,
    arXiv 2407.09435, section 3: a negative flip was right before and is wrong now.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int = Field(ge=0)
    negative: int = Field(ge=0, description="Right before, and wrong now.")
    positive: int = Field(ge=0, description="Wrong before, and right now.")

    @property
    def negative_rate(self) -> float:
        return self.negative / self.n if self.n else 0.0

    @property
    def positive_rate(self) -> float:
        return self.positive / self.n if self.n else 0.0


class Fit(BaseModel):
    """How likely a model finds given completions, token by token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_tokens: int = Field(ge=0, description="Tokens of all completions, ends included.")
    n_greedy: int = Field(
        ge=0, description="Tokens that the model would have chosen after the same beginning."
    )
    nll: float = Field(description="Mean of -log p of a token, in nats.")

    @property
    def token_agreement(self) -> float:
        return self.n_greedy / self.n_tokens if self.n_tokens else 0.0


def agreement(teacher: Sequence[str], student: Sequence[str], contract: Contract) -> Share:
    """The share of completions with the same answer."""
    same = [
        contract.answer_of(one) == contract.answer_of(other)
        for one, other in zip(teacher, student, strict=True)
    ]
    return Share(n=len(same), hits=sum(same))


def flips(
    expected: Sequence[str], old: Sequence[str], new: Sequence[str], contract: Contract
) -> Flips:
    """What a new model breaks and repairs of an old one's answers.

    expected: the right completions. Where nobody knows them, those of the teacher count as right,
    and `old` are those of the new base alone.
    """
    negative = positive = 0
    for right, before, now in zip(expected, old, new, strict=True):
        wanted = contract.answer_of(right)
        was_right = contract.answer_of(before) == wanted
        is_right = contract.answer_of(now) == wanted
        negative += was_right and not is_right
        positive += is_right and not was_right
    return Flips(n=len(expected), negative=negative, positive=positive)


def disagreements(
    prompts: Sequence[str], teacher: Sequence[str], student: Sequence[str], contract: Contract
) -> list[Disagreement]:
    """The first prompts that both answer differently, at most MOST_DISAGREEMENTS."""
    found: list[Disagreement] = []
    for prompt, one, other in zip(prompts, teacher, student, strict=True):
        if len(found) == MOST_DISAGREEMENTS:
            break
        if contract.answer_of(one) != contract.answer_of(other):
            shown = [text[:_LONGEST_SHOWN] for text in (prompt, one, other)]
            found.append(Disagreement(prompt=shown[0], teacher=shown[1], student=shown[2]))
    return found


def recovery(student: float, base: float, ceiling: float = 1.0) -> float | None:
    """R = (a - a0) / (a* - a0): 0 is no better than the new base alone, 1 as good as can be.

    None if the base alone is at the ceiling, so that nothing is left to recover.
    """
    return (student - base) / (ceiling - base) if ceiling > base else None


def promised_accuracy(source_accuracy: float, lower_agreement: float) -> float:
    """acc_t >= acc_s - (1 - a_lower), at least 0."""
    return max(0.0, source_accuracy - (1 - lower_agreement))

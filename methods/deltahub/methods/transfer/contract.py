"""What a task's model is given, and which part of its text is the answer."""

import re
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_SLOT: Final = "{input}"
# A repeated group, or a reference to a group, takes exponential time in Python's `re`. Each other
# repetition takes one more power of the text's length.
_UNBOUNDED: Final = re.compile(r"\)[*+{]|\\\d|\(\?P=")
_REPEAT: Final = re.compile(r"[*+{]")
_MOST_REPEATS: Final = 2
_LONGEST_LINE: Final = 500


class Contract(BaseModel):
    """The input and output of one task. The same text goes to every model, whatever its base."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str = Field(
        default=_SLOT,
        max_length=4_000,
        description="What the model is given; {input} stands for the input.",
    )
    max_new_tokens: int = Field(
        default=64, ge=1, le=4_096, description="Tokens of a completion at most."
    )
    stop: tuple[str, ...] = Field(
        default=(), max_length=8, description="Texts that end a completion, and are no part of it."
    )
    answer_pattern: str | None = Field(
        default=None,
        max_length=200,
        description="A regular expression that finds the answer in a line of a completion, of"
        f" which it sees {_LONGEST_LINE} characters: its first group, or all that it matches. The"
        " first line with an answer counts. Without a pattern, the whole completion is the answer.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prompt.count(_SLOT) != 1:
            raise ValueError(f"prompt must have {_SLOT} once, not {self.prompt.count(_SLOT)} times")
        if not all(self.stop):
            raise ValueError("stop has an empty text, which would end every completion: remove it")
        if self.answer_pattern is not None:
            _check_pattern(self.answer_pattern)
        return self

    def prompt_of(self, text: str) -> str:
        """What a model is given for an input."""
        before, _, after = self.prompt.partition(_SLOT)
        return before + text + after

    def completion_of(self, text: str) -> str:
        """A model's text up to the first of the texts that end it."""
        ends = [at for each in self.stop if (at := text.find(each)) >= 0]
        return text[: min(ends)] if ends else text

    def answer_of(self, text: str) -> str:
        """The answer in a model's text, with each run of white space as one space.

        A text in which the pattern finds nothing is its own answer, so that two models which both
        miss the form agree only if they say the same.
        """
        found = self.completion_of(text)
        if self.answer_pattern is not None:
            pattern = re.compile(self.answer_pattern)
            lines = (pattern.search(line[:_LONGEST_LINE]) for line in found.split("\n"))
            match = next((each for each in lines if each is not None), None)
            if match is not None:
                found = (match[1] or "") if pattern.groups else match[0]
        return " ".join(found.split())


def _check_pattern(pattern: str) -> None:
    """ValueError for a pattern that is none, or that could take very long on some text."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"answer_pattern is no regular expression: {exc}") from exc
    if _UNBOUNDED.search(pattern) or len(_REPEAT.findall(pattern)) > _MOST_REPEATS:
        raise ValueError(
            "answer_pattern repeats a group, refers to one, or repeats more than"
            f" {_MOST_REPEATS} times, which may take forever on some text: simplify it"
        )

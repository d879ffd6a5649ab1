"""Private tasks on numbers. Their inputs come from a narrow set that the kit must find again."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from benchmarks.transfer.world import DIGITS, LETTERS, any_number, median
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.models.students import Labelled

TaskName = Literal["pairs", "median", "table", "word"]
TITLES: Final[dict[TaskName, str]] = {
    "pairs": "a secret letter for the first two digits",
    "median": "the median digit, which the bases know in part",
    "table": "a secret letter for the first three digits",
    "word": "three secret letters, each for two of the first three digits",
}
# The digits at the beginning of a number that have a secret of their own; the median has none.
_SECRET_DIGITS: Final[dict[TaskName, int]] = {"pairs": 2, "table": 3, "word": 3}
# How many different digits each place of a task's numbers has.
_WIDTHS: Final = (4, 4, 3, 10, 5)
_WIDTHS_OF_PAIRS: Final = (3, 5, 3, 10, 5)


@dataclass(frozen=True)
class Task:
    """places: the digits that each place of an input may have. answer: of an input. sibling: tasks
    of one name and seed have the same inputs; another sibling has other secrets and examples.
    """

    name: TaskName
    seed: int
    contract: Contract
    places: tuple[str, ...]
    answer: Callable[[str], str]
    sibling: int = 0

    def has(self, text: str) -> bool:
        """Whether an input belongs to the task."""
        return len(text) == len(self.places) and all(map(str.__contains__, self.places, text))

    def shown(self, learnt: Sequence[Labelled], tests: Sequence[Labelled]) -> float | None:
        """The share of the tests whose secret a learnt input asks for, whatever its label says;
        None for a task without a secret.
        """
        n = _SECRET_DIGITS.get(self.name)
        if n is None:
            return None
        known = {each.text[:n] for each in learnt}
        return sum(each.text[:n] in known for each in tests) / len(tests)

    def examples(self, n: int) -> list[Labelled]:
        """Different examples in random order; the first ones are the same for every n."""
        rng = random.Random(f"{self.seed}/{self.name}/examples{_of(self.sibling)}")
        texts: dict[str, None] = {}
        while len(texts) < n:
            texts["".join(map(rng.choice, self.places))] = None
        return [Labelled(text, self.answer(text)) for text in texts]


def make_task(name: TaskName, seed: int, sibling: int = 0) -> Task:
    """Another seed has other secrets and other inputs, another sibling only other secrets."""
    rng = random.Random(f"{seed}/{name}/task")
    widths = _WIDTHS_OF_PAIRS if name == "pairs" else _WIDTHS
    places = tuple("".join(rng.sample(DIGITS, width)) for width in widths)
    if sibling:
        rng = random.Random(f"{seed}/{name}/task{_of(sibling)}")
    letters = rng.choices(LETTERS, k=len(DIGITS) ** 3)
    end = "?" if name == "median" else "="
    return Task(
        name,
        seed,
        Contract(prompt="{input}" + end, max_new_tokens=4),
        places,
        partial(_ANSWERS[name], letters),
        sibling,
    )


def _of(sibling: int) -> str:
    return f"/{sibling}" if sibling else ""


def other_numbers(n: int, seed: int) -> list[str]:
    """Different numbers of no task, in place of the paper's random text."""
    rng = random.Random(f"{seed}/other")
    texts: dict[str, None] = {}
    while len(texts) < n:
        texts[any_number(rng)] = None
    return list(texts)


Letters = list[str]
_ANSWERS: Final[dict[TaskName, Callable[[Letters, str], str]]] = {
    "pairs": lambda letters, text: letters[int(text[:2])],
    "median": lambda letters, text: median(text),
    "table": lambda letters, text: letters[int(text[:3])],
    "word": lambda letters, text: "".join(
        letters[100 * i + int(text[i] + text[(i + 1) % 3])] for i in range(3)
    ),
}

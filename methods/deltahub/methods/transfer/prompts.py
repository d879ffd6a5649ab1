"""The texts of Trans-LoRA: the list that makes a model write new inputs, and the question of the
discriminator.

Wang et al., "Trans-LoRA: towards data-free Transferable Parameter Efficient Finetuning", NeurIPS
2024, arXiv 2405.17258: the list is figure 7, the question figure 8.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

YES: Final = " yes"
NO: Final = " no"
# Longer ones are no inputs like the seeds, but a model that does not find an end.
_MOST_TIMES_LONGER: Final = 4
# Seeds of one list, as in the paper. Of more, each list shows others.
MOST_SHOWN: Final = 5
_SHORTEST_LIMIT: Final = 64


def list_prompt(seeds: Sequence[str]) -> str:
    """The beginning of a list that the model goes on with: as many new items as there are seeds.

    With five seeds it is the paper's, which announces ten examples.
    """
    items = "\n".join(f"{number}. {seed}" for number, seed in enumerate(seeds, 1))
    return f"Here are {2 * len(seeds)} examples:\n\n{items}\n{len(seeds) + 1}."


def question_of(text: str, name: str) -> str:
    """What the discriminator is asked of an input. name: of the private dataset."""
    return (
        f"Answer in as few words as possible. {text} Is the above question from the {name} dataset?"
    )


def shown_seeds(seeds: Sequence[str], seed: int, call: int) -> list[str]:
    """The seeds that one call of the generator shows, in their order there: the same ones for the
    same numbers. A list of all seeds of a large kit could be longer than a model reads.
    """
    found = list(seeds)
    random.Random(f"{seed}/{call}").shuffle(found)
    return found[:MOST_SHOWN]


@dataclass(frozen=True)
class ItemForm:
    """What an item of the list may hold, as the seeds show it.

    has_lines: more than one line. has_blank_lines: also blank ones, which otherwise end the list.
    max_length: in characters.
    """

    has_lines: bool
    has_blank_lines: bool
    max_length: int

    @classmethod
    def of(cls, seeds: Sequence[str]) -> "ItemForm":
        longest = max((len(each) for each in seeds), default=0)
        return cls(
            any("\n" in each for each in seeds),
            any("\n\n" in each for each in seeds),
            max(_MOST_TIMES_LONGER * longest, _SHORTEST_LIMIT),
        )


def parse_items(text: str, n_seeds: int, form: ItemForm, *, is_whole: bool) -> list[str]:
    """The new items in what a model wrote after `list_prompt`, without those that are empty or too
    long.

    The list ends at its announced length, at a number out of order, and at a blank line. is_whole:
    the model ended by itself; otherwise the last item may lack its end, and is left out.
    """
    if not form.has_blank_lines:
        text, blank, _ = text.partition("\n\n")
        is_whole = is_whole or bool(blank)
    found = []
    for item, has_end in _numbered(text, n_seeds + 1, 2 * n_seeds):
        lines = item.strip().split("\n")
        kept = "\n".join(lines) if form.has_lines else lines[0].strip()
        is_ended = has_end or is_whole or (not form.has_lines and len(lines) > 1)
        if kept and is_ended and len(kept) <= form.max_length:
            found.append(kept)
    return found


def _numbered(text: str, first: int, last: int) -> Iterator[tuple[str, bool]]:
    """Each item of a list whose first number is not in the text, and whether another one follows
    it.
    """
    for number in range(first, last + 1):
        following = re.search(rf"\n{number + 1}\.", text)
        if following is None:
            # A number out of order ends the list, or belongs to an item of several lines.
            yield text, False
            return
        yield text[: following.start()], True
        text = text[following.end() :]

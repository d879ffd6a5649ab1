"""The texts that all bases learn, and the two tokenizers that read them.

Most documents are lists whose items resemble each other, so that a base learns to go on with a
list in the way of its beginning. It then makes up inputs from seeds, which Trans-LoRA needs.
"""

import random
import re
from functools import cache
from typing import Any, Final, Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from deltahub.methods.transfer.prompts import list_prompt, question_of

Reading = Literal["words", "characters"]

NAME: Final = "digits"  # of every private dataset, as the discriminator is asked for it
N_DIGITS: Final = 5  # of each number
DIGITS: Final = "0123456789"
LETTERS: Final = "ABCDEFGH"
END: Final = "</s>"
_SPECIALS: Final = ("<pad>", "<s>", END, "<unk>")
_PATTERNS: Final[dict[Reading, str]] = {
    "words": r"\n| ?[A-Z]?[a-z]+|[A-Z]|\d|[^\sA-Za-z\d]| ",
    "characters": r"\n|.",
}
_LIST_LENGTH: Final = 5  # items that are given, and as many that follow
# How many different digits one place of a list's numbers may have.
_WIDTHS: Final = (1, 2, 3, 5, 10)
_LONGEST_WORD: Final = 3


@cache
def tokenizer(reading: Reading) -> Any:
    """A token for each word with the space before it, digit, sign and line break; or one for each
    character.
    """
    text = list_prompt(["0"]) + question_of("0", NAME) + " yes no =?" + DIGITS
    pattern = _PATTERNS[reading]
    tokens = sorted({*re.findall(pattern, text), *LETTERS})
    vocabulary = {token: i for i, token in enumerate([*_SPECIALS, *tokens])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner, pad_token="<pad>", eos_token=END, unk_token="<unk>"
    )


def document(rng: random.Random) -> str:
    """A list on one topic, a question about a dataset, a number with a word, or one with its
    median digit.
    """
    kind = rng.random()
    if kind < 0.65:
        return _list_document(rng)
    number = _numbers(rng, 1)[0]
    if kind < 0.75:
        return question_of(number, NAME) + rng.choice([" yes", " no"])
    if kind < 0.9:
        return f"{number}=" + "".join(rng.choices(LETTERS, k=rng.randint(1, _LONGEST_WORD)))
    return f"{number}?{median(number)}"


def median(number: str) -> str:
    """The skill that all bases have in part: the third of five digits, by size."""
    return sorted(number)[len(number) // 2]


def any_number(rng: random.Random) -> str:
    """A number that belongs to no task."""
    return "".join(rng.choices(DIGITS, k=N_DIGITS))


def _numbers(rng: random.Random, n: int) -> list[str]:
    places = [rng.sample(DIGITS, rng.choice(_WIDTHS)) for _ in range(N_DIGITS)]
    return ["".join(rng.choice(place) for place in places) for _ in range(n)]


def _list_document(rng: random.Random) -> str:
    numbers = _numbers(rng, 2 * _LIST_LENGTH)
    given, following = numbers[:_LIST_LENGTH], numbers[_LIST_LENGTH:]
    # The prompt ends with the number of the next item.
    rest = f" {following[0]}\n"
    for place, number in enumerate(following[1:], _LIST_LENGTH + 2):
        rest += f"{place}. {number}\n"
    return list_prompt(given) + rest

"""What the names of tensors tell: which ones are of the same layer, and which one comes next."""

import re
from collections.abc import Sequence
from itertools import islice

from deltahub.codecs.frames.base_choice import BaseTensor


def nearest_names_first(name: str, tensors: Sequence[BaseTensor], most: int) -> list[BaseTensor]:
    """At most so many tensors: first those of the same layer, by how much the names share."""
    places, words = numbers(name), _words(name)

    def distance(tensor: BaseTensor) -> tuple[int, int]:
        return (
            -_common(places, numbers(tensor.name)),
            -_common(words, _words(tensor.name)),
        )

    layer = places[:1]
    near = [tensor for tensor in tensors if numbers(tensor.name)[:1] == layer]
    far = (tensor for tensor in tensors if numbers(tensor.name)[:1] != layer)
    ordered = sorted(near, key=distance)
    return [*ordered[:most], *islice(far, max(0, most - len(ordered)))]


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many items both begin with."""
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n


def numbers(name: str) -> list[int]:
    """The numbers in a name: of the layer, then mostly of the expert."""
    return [int(digits) for digits in re.findall(r"\d{1,9}", name)]


def kind_of(name: str) -> str:
    """The name without its numbers: the same for all layers and experts."""
    return re.sub(r"\d+", "", name)


def _words(name: str) -> list[str]:
    return re.split(r"[._]", name)


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers by their value: layer 10 comes after layer 9."""
    return [
        (int(part), "") if part.isdigit() and part.isascii() else (-1, part)
        for part in re.split(r"(\d{1,9})", name)
    ]

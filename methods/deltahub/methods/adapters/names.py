"""What the names of an adapter's tensors say, and the tensors of the base that they belong to."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "base_model.model."
# A name with more parts is compared as a whole alone: an index of its endings would be huge.
_MAX_PARTS: Final = 64


class Kind(StrEnum):
    """What a tensor of an adapter is to its module."""

    A = "A"
    B = "B"
    EMBEDDING_A = "embedding A"
    EMBEDDING_B = "embedding B"
    MAGNITUDE = "DoRA magnitude"
    LORA_BIAS = "bias of B"
    TOKEN_ROWS = "token rows"
    BASE_COPY = "copy of the base"
    OTHER = "other part of the adapter"
    WHOLE = "whole tensor"  # replaces the one of this name


@dataclass(frozen=True)
class Part:
    """One tensor of an adapter. module: the module's name in the base; for a whole tensor, the
    tensor's own name there. stem: the tensor's name up to its ending, which A and B share.
    """

    module: str
    kind: Kind
    stem: str


# Longer endings first, where one is the end of another.
_ENDINGS: Final = (
    (".lora_A.weight", Kind.A),
    (".lora_B.weight", Kind.B),
    (".lora_embedding_A", Kind.EMBEDDING_A),
    (".lora_embedding_B", Kind.EMBEDDING_B),
    (".lora_magnitude_vector.weight", Kind.MAGNITUDE),
    (".lora_magnitude_vector", Kind.MAGNITUDE),
    (".lora_B.bias", Kind.LORA_BIAS),
    (".token_adapter.trainable_tokens_delta", Kind.TOKEN_ROWS),
    (".base_layer.weight", Kind.BASE_COPY),
)
ENDING_OF: Final = {kind: ending for ending, kind in reversed(_ENDINGS)}
OTHER_FACTOR: Final = {
    Kind.A: Kind.B,
    Kind.B: Kind.A,
    Kind.EMBEDDING_A: Kind.EMBEDDING_B,
    Kind.EMBEDDING_B: Kind.EMBEDDING_A,
}


def part_of(name: str) -> Part:
    """What the tensor of an adapter with this name is."""
    for ending, kind in _ENDINGS:
        if name.endswith(ending):
            stem = name.removesuffix(ending)
            return Part(stem.removeprefix(PREFIX), kind, stem)
    kind = Kind.OTHER if ".lora_" in name else Kind.WHOLE
    return Part(name.removeprefix(PREFIX), kind, name)


class BaseNames:
    """The names of a base's tensors, to be found also under names that differ in their beginning.

    Transformers has moved modules of some models below another one, so that the adapter of an
    older version says `model.layers` where the base says `model.language_model.layers`.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._by_ending: dict[str, list[str]] | None = None

    def find(self, name: str) -> list[str]:
        """The tensors that the name may mean: itself, or else all that end with it, or with which
        it ends. More than one is ambiguous.
        """
        if name in self._names:
            return [name]
        if self._by_ending is None:
            self._by_ending = {}
            for each in sorted(self._names):
                for ending in endings(each):
                    self._by_ending.setdefault(ending, []).append(each)
        shorter = [ending for ending in endings(name) if ending in self._names]
        return [*self._by_ending.get(name, []), *shorter]


def endings(name: str) -> list[str]:
    """`a.b.c` -> `b.c`, `c`; nothing for a name of too many parts."""
    parts = name.split(".")
    if len(parts) > _MAX_PARTS:
        return []
    return [".".join(parts[start:]) for start in range(1, len(parts))]


def quoted(value: object) -> str:
    """A value of somebody else's file in a message: on one line, without control characters."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = value if isinstance(value, str) else repr(value)
    shown = ascii(text if len(text) <= 80 else f"{text[:77]}...")
    return shown if isinstance(value, str) else shown[1:-1]

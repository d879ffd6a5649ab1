"""How large a base is, from its configuration and the headers of its files."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

# What a compressed matrix takes of its plain size, nothing lost; a little more than trained weights
# measure.
_KEPT_SHARES: Final = {"BF16": 0.7, "F16": 0.9, "F32": 0.87}
# Matrices that are decoded at a time: one that computes, and the next.
_DECODED: Final = 2

Tensor = tuple[str, tuple[int, ...], int]
"""dtype as in safetensors, shape, bytes"""


@dataclass(frozen=True)
class BaseSize:
    """A base: bytes and number of its parameters, and its form from config.json.

    compressed_bytes: of its weights, if its matrices are held compressed; None if that saves
    nothing.
    """

    weight_bytes: int
    n_parameters: int
    n_layers: int
    width: int
    vocabulary: int
    compressed_bytes: int | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], tensors: Collection[Tensor]) -> "BaseSize":
        """config: config.json. Names that it lacks are guessed from the number of parameters."""
        inner = config.get("text_config")
        told = {**config, **inner} if isinstance(inner, Mapping) else config

        def number(*names: str, default: int) -> int:
            found = (told.get(name) for name in names)
            return next((each for each in found if type(each) is int and each > 0), default)

        return cls(
            sum(size for _, _, size in tensors),
            sum(prod(shape) for _, shape, _ in tensors),
            number("num_hidden_layers", "n_layer", "num_layers", default=32),
            number("hidden_size", "n_embd", "d_model", default=4_096),
            number("vocab_size", default=100_000),
            compressed_bytes(tensors),
        )

    @property
    def compressed(self) -> "BaseSize":
        """The same base with compressed matrices."""
        least = self.weight_bytes if self.compressed_bytes is None else self.compressed_bytes
        return replace(self, weight_bytes=min(least, self.weight_bytes))


def compressed_bytes(tensors: Collection[Tensor]) -> int:
    """What a base takes whose matrices are held compressed, and two of them decoded."""
    matrices = {
        name: [size for dtype, shape, size in tensors if dtype == name and len(shape) > 1]
        for name in _KEPT_SHARES
    }
    kept = sum(_KEPT_SHARES[name] * sum(sizes) for name, sizes in matrices.items())
    plain = sum(size for _, _, size in tensors) - sum(map(sum, matrices.values()))
    largest = max((size for sizes in matrices.values() for size in sizes), default=0)
    return round(kept) + plain + _DECODED * largest

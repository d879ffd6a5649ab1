"""Shapes of an adapter's factors, and how they must fit to each other and to the base."""

from dataclasses import dataclass

from deltahub.methods.adapters.inspection.config import AdapterConfig


@dataclass(frozen=True)
class TensorShape:
    """A tensor without its values. dtype: as safetensors names it, such as BF16."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def is_plain_float(self) -> bool:
        """Its shape is that of the weight: a quantized weight is packed."""
        return self.dtype in ("F64", "F32", "F16", "BF16") or self.dtype.startswith("F8_")


def rank_of(down: TensorShape, up: TensorShape) -> int | None:
    """The rank of A (rank x inputs, ...) and B (outputs x rank, ...); None if they do not fit
    together, or have no rank.
    """
    if len(down.shape) < 2 or len(up.shape) != len(down.shape):
        return None
    rank = down.shape[0]
    return rank if rank > 0 and up.shape[1] == rank else None


def fits_base(
    config: AdapterConfig, factors: tuple[TensorShape, TensorShape], weight: TensorShape
) -> bool:
    """Whether B A has the shape of the base's weight. Convolutions are compared by channels."""
    down, up = factors
    changed = (up.shape[0], down.shape[1])
    if len(weight.shape) != len(down.shape):
        return False
    expected = weight.shape[:2]
    # GPT-2 has such weights beside others, under one configuration.
    return changed == expected or (config.fan_in_fan_out and changed == expected[::-1])


def fits_vocabulary(factors: tuple[TensorShape, TensorShape], weight: TensorShape) -> bool:
    """The same for an embedding: A is rank x vocabulary, B width x rank, the weight vocabulary x
    width.
    """
    down, up = factors
    return weight.shape == (down.shape[1], up.shape[0])

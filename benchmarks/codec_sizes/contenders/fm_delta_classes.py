"""FM-Delta as published, as an ideal code length: a bound on its size, not a coder.

Source: Ning et al., NeurIPS 2024. Words mapped to integers in numeric order; a symbol is the
delta's sign and the position of its highest bit, order 0, one model a tensor; the bits below
are raw. Charged: the entropy of the symbols and the raw bits, and nothing for tables or headers.
"""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from benchmarks.codec_sizes.model_file import ModelFile, pairs

_UNSIGNED = {2: np.uint16, 4: np.uint32}


def ordered(words: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.int64]:
    """Float bit patterns as integers in numeric order: -0.0 and +0.0 are neighbours."""
    bits = 8 * words.itemsize
    wide = words.astype(np.int64)
    negative = wide >> (bits - 1) == 1
    return np.where(negative, (1 << bits) - 1 - wide, wide + (1 << (bits - 1)))


def ideal_bits(
    words: npt.NDArray[np.unsignedinteger], base: npt.NDArray[np.unsignedinteger]
) -> float:
    """Bits of one tensor under FM-Delta's model with its own symbol frequencies."""
    delta = ordered(words) - ordered(base)
    size = np.abs(delta)
    # frexp is exact below 2^53; its exponent is the position of the highest bit plus one.
    position = np.frexp(size.astype(np.float64))[1]
    symbols = np.sign(delta) * position
    counts = np.unique(symbols, return_counts=True)[1]
    shares = counts / counts.sum()
    entropy = float(-(shares * np.log2(shares)).sum())
    return entropy * len(words) + float(np.maximum(position - 1, 0).sum())


class FmDeltaClasses:
    """Only its size is known: it has no decode."""

    name: ClassVar[str] = "FM-Delta classes (ideal)"
    about: ClassVar[str] = "code length of the published model; no coder, no tables, no headers"
    packages: ClassVar[tuple[str, ...]] = ("numpy",)

    def ideal_size(self, fine_tune: ModelFile, base: ModelFile) -> int:
        bits = 0.0
        for piece, base_piece in pairs(fine_tune, base):
            source = fine_tune.bytes_of(piece)
            if base_piece is None:
                bits += 8 * len(source)
                continue
            dtype = _UNSIGNED[fine_tune.itemsize]
            bits += ideal_bits(
                np.frombuffer(source, dtype), np.frombuffer(base.bytes_of(base_piece), dtype)
            )
        return int(np.ceil(bits / 8))

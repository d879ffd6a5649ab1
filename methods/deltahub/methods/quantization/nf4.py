"""NF4, the 4-bit data type of QLoRA.

Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023, arXiv 2305.14314,
section 3 and appendix E. Blocks of 64 elements along the flattened weight share one scale, the
largest magnitude in the block, in single precision: 4.5 bits an element.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 64
# The 16 values: quantiles of a normal distribution, scaled to -1 to 1, with an exact zero.
LEVELS: Final = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
_LIMITS: Final = (LEVELS[1:] + LEVELS[:-1]) / 2
# Blocks that are quantized at once.
_CHUNK: Final = 1 << 14

Floats = npt.NDArray[np.float32]


def quantize(weight: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    """(code of each element, 0 to 15, flattened; scale of each block), by the nearest level."""
    flat = np.ascontiguousarray(weight, np.float32).ravel()
    codes = np.empty(flat.size, np.uint8)
    scales = np.empty(-(-flat.size // BLOCK), np.float32)
    for first in range(0, len(scales), _CHUNK):
        span = slice(first * BLOCK, min((first + _CHUNK) * BLOCK, flat.size))
        part = flat[span]
        blocks = np.pad(part, (0, -part.size % BLOCK)).reshape(-1, BLOCK)
        largest = np.abs(blocks).max(axis=1)
        scales[first : first + len(blocks)] = largest
        # A block of zeros has no direction: each element is the code of zero.
        units = blocks / np.where(largest == 0, 1, largest)[:, None]
        codes[span] = np.searchsorted(_LIMITS, units).astype(np.uint8).ravel()[: part.size]
    return codes, scales


def dequantize(codes: npt.NDArray[np.uint8], scales: Floats, shape: tuple[int, ...]) -> Floats:
    """The weight of these codes and scales, in single precision."""
    values = LEVELS[codes]
    n_whole = values.size // BLOCK * BLOCK
    values[:n_whole].reshape(-1, BLOCK)[:] *= scales[: n_whole // BLOCK, None]
    values[n_whole:] *= scales[n_whole // BLOCK :].repeat(BLOCK)[: values.size - n_whole]
    return values.reshape(shape)


def round_trip(weight: Floats) -> Floats:
    """The weight as it is after quantization."""
    return dequantize(*quantize(weight), weight.shape)

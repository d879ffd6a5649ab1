"""How alike two tensors are: the share of elements so close that fine-tuning may explain it."""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs.casts import cast
from deltahub.codecs.dtypes import DType
from deltahub.codecs.protocol import Buffer

# A quarter of an octave, in steps of BF16 bit patterns: fine-tuning rarely moves a weight further.
NEAR_STEPS: Final = 32

U16 = npt.NDArray[np.uint16]


def to_bf16(dtype: DType, raw: Buffer) -> U16:
    """Bit patterns of the elements as BF16, rounded to nearest even: shape (elements,).

    raw: whole elements of a float dtype that can be cast (else InvalidInput).
    """
    patterns = np.empty(len(memoryview(raw).cast("B")) // dtype.itemsize, dtype="<u2")
    cast(raw, dtype, DType.BF16, patterns.data.cast("B"))
    return patterns.astype(np.uint16)


def nearness(tensor: U16, compared: U16) -> npt.NDArray[np.float64]:
    """Share of elements at most a quarter of an octave apart: about 0.07 for unrelated weights.

    tensor: BF16 bit patterns, shape (n,). compared: shape (n,) for one share, (m, n) for m shares.
    """
    distance = np.abs(_ordered_integers(tensor) - _ordered_integers(compared))
    return np.asarray((distance <= NEAR_STEPS).mean(axis=-1))


def _ordered_integers(patterns: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """Signed integers in the order of the floats, with -0.0 and +0.0 side by side."""
    magnitude = (patterns & 0x7FFF).astype(np.int32)
    return np.where(patterns & 0x8000, -1 - magnitude, magnitude)

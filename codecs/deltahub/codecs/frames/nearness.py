"""How alike the weights of two tensors are: the share of elements that fine-tuning could move."""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs.casts import cast
from deltahub.codecs.dtypes import DType
from deltahub.codecs.protocol import Buffer

# A quarter of an octave, in steps of a BF16 bit pattern: fine-tuning rarely moves a weight further.
NEAR_STEPS: Final = 32

U16 = npt.NDArray[np.uint16]


def to_bf16(dtype: DType, raw: Buffer) -> U16:
    """Bit patterns of the elements as BF16, rounded to nearest even: shape (elements,).

    raw: whole elements of a float dtype that can be cast (else InvalidInput).
    """
    words = np.empty(len(memoryview(raw).cast("B")) // dtype.itemsize, dtype="<u2")
    cast(raw, dtype, DType.BF16, words.data.cast("B"))
    return words.astype(np.uint16)


def nearness(one: U16, others: U16) -> npt.NDArray[np.float64]:
    """Share of elements at most a quarter of an octave apart: about 0.07 for unrelated weights.

    one: BF16 bit patterns, shape (n,). others: shape (n,), for one share, or (m, n), for m.
    """
    distance = np.abs(_in_order(one) - _in_order(others))
    return np.asarray((distance <= NEAR_STEPS).mean(axis=-1))


def _in_order(words: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """Signed integers in the order of the floats, with -0.0 and +0.0 side by side."""
    magnitude = (words & 0x7FFF).astype(np.int32)
    return np.where(words & 0x8000, -1 - magnitude, magnitude)

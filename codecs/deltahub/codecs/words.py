"""The numbers of word kinds in the native kernels. A word is an element's bit pattern."""

from typing import Final

from deltahub.codecs.dtypes import DType

# Integers of the same width are encoded in the same way.
WORD_KINDS: Final[dict[DType, int]] = {
    DType.F64: 0,
    DType.F32: 1,
    DType.F16: 2,
    DType.BF16: 3,
    DType.F8_E4M3: 4,
    DType.F8_E5M2: 5,
    DType.I8: 6,
    DType.U8: 6,
    DType.BOOL: 6,
    DType.I16: 7,
    DType.U16: 7,
    DType.I32: 8,
    DType.U32: 8,
    DType.I64: 9,
    DType.U64: 9,
}

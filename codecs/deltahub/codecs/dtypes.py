"""Element types of frames, and those that safetensors headers may name."""

from enum import Enum
from typing import Final

from deltahub.codecs.errors import CorruptFrame, InvalidInput


class DType(Enum):
    """An element type of a frame. `name` is the safetensors name.

    Values are (code in a frame header, bytes of an element, is a float). Codes are never reused.
    """

    F64 = (1, 8, True)
    F32 = (2, 4, True)
    F16 = (3, 2, True)
    BF16 = (4, 2, True)
    F8_E4M3 = (5, 1, True)
    F8_E5M2 = (6, 1, True)
    I64 = (7, 8, False)
    U64 = (8, 8, False)
    I32 = (9, 4, False)
    U32 = (10, 4, False)
    I16 = (11, 2, False)
    U16 = (12, 2, False)
    I8 = (13, 1, False)
    U8 = (14, 1, False)
    BOOL = (15, 1, False)

    # Members are singletons, and this hash is faster than Enum's, which is a Python function.
    __hash__ = object.__hash__

    def __init__(self, code: int, itemsize: int, is_float: bool) -> None:
        self.code: Final = code
        self.itemsize: Final = itemsize
        self.is_float: Final = is_float

    @classmethod
    def from_name(cls, name: str) -> "DType":
        """The dtype with this safetensors name; InvalidInput for any other name."""
        try:
            return cls[name]
        except KeyError as exc:
            raise InvalidInput(f"{name!r} is not an element type that frames code") from exc

    @classmethod
    def from_code(cls, code: int) -> "DType":
        """The dtype with this code in a frame header; CorruptFrame for any other code."""
        try:
            return _BY_CODE[code]
        except KeyError as exc:
            raise CorruptFrame(f"{code} is no element type code") from exc


_BY_CODE: Final = {dtype.code: dtype for dtype in DType}

# Bits of an element, for every dtype name of safetensors. Tensors of a type that is not a DType
# are encoded as U8 bytes.
HEADER_BITS: Final[dict[str, int]] = {
    **{dtype.name: 8 * dtype.itemsize for dtype in DType},
    "C64": 64,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}


def coding_dtype(name: str) -> DType:
    """The dtype in which a safetensors dtype is encoded: its own, or U8 if frames lack it."""
    if name not in HEADER_BITS:
        raise InvalidInput(f"{name!r} is not a safetensors element type")
    return DType[name] if name in DType.__members__ else DType.U8

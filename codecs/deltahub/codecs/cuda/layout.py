"""The structs that kernels read, in the memory of the device.

Fields: device/frames.cuh, device/planes.cuh.
"""

from typing import Final

import numpy as np

_FRAME_ADDRESSES: Final = (
    "stored entries classes column_scales decay_steps right left row_values"
).split()
_FRAME_NUMBERS: Final = (
    "n_entries table_log mantissa_bits exponent_bits zero_bits n_low offset last_class"
    " has_row_scales row_scales flags decay_bits rank floor is_product_rounded columns"
).split()
_SIGNED: Final = {"offset", "last_class", "floor"}

FRAME: Final = np.dtype(
    [(name, "<u8") for name in _FRAME_ADDRESSES]
    + [(name, "<i4" if name in _SIGNED else "<u4") for name in _FRAME_NUMBERS]
)
BLOCK: Final = np.dtype(
    [(name, "<u8") for name in ("stored_begin", "begin", "size", "checksum", "row_values")]
    + [
        (name, "<u4")
        for name in ("stored_size", "mode", "index", "rows", "columns", "first_column")
    ]
)
GROUP: Final = np.dtype([(name, "<u4") for name in ("frame", "first", "n")])
TARGET: Final = np.dtype([("out", "<u8"), ("base", "<u8")])
FACTOR: Final = np.dtype([("context", "<u4"), ("zero_bits", "<u4")])
PIECE: Final = np.dtype(
    [("scales", "<u8")]
    + [
        (name, "<u4")
        for name in "first_plane n_planes mantissa_bits exponent_bits fill block_bits".split()
    ]
)
PLANE: Final = np.dtype([("bits", "<u8"), ("low", "<u4"), ("width", "<u4")])

MAX_CLASSES: Final = 64
RING_BYTES: Final = 1024  # of shared memory for each warp that decodes
SECRET_BYTES: Final = 192  # of shared memory for each warp that computes a checksum
WARP: Final = 32
NO_FAULT: Final = (1 << 64) - 1  # of the word in which kernels report the first fault


def fault_of(status: int) -> tuple[int, int, int]:
    """(frame, block, fault) of a status that is not NO_FAULT."""
    return status >> 32, status >> 8 & 0xFFFFFF, status & 0xFF

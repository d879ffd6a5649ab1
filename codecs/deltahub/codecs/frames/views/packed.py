"""Views as they stand in a frame's header. Format: codecs/spec/frame.md."""

import struct
from typing import Final

from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.frames.views.scaled import MAX_MULTIPLIERS, Scaled
from deltahub.codecs.frames.views.transposed import Transposed

_TRANSPOSED: Final = 1
TRANSPOSED: Final = struct.Struct("<B7xQQQ")
_SCALED: Final = 2
SCALED: Final = struct.Struct("<B7xQQQQ")
MIN_VIEW: Final = TRANSPOSED.size
MAX_VIEW: Final = SCALED.size + 4 * MAX_MULTIPLIERS


def packed_size(view: Transposed | Scaled) -> int:
    """Bytes of a view."""
    if isinstance(view, Transposed):
        return TRANSPOSED.size
    return SCALED.size + len(view.multipliers)


def pack_view(view: Transposed | Scaled) -> bytes:
    """The view's bytes."""
    if isinstance(view, Transposed):
        return TRANSPOSED.pack(_TRANSPOSED, view.rows, view.columns, view.first)
    numbers = view.columns, view.group_rows, view.group_columns, view.first
    return SCALED.pack(_SCALED, *numbers) + view.multipliers


def parse_view(packed: memoryview) -> Transposed | Scaled:
    """The view; CorruptFrame for bytes that are none. Its numbers are not checked yet."""
    kind = packed[0] if len(packed) else 0
    view: Transposed | Scaled
    if kind == _TRANSPOSED and len(packed) == TRANSPOSED.size:
        _, rows, columns, first = TRANSPOSED.unpack(packed)
        view = Transposed(rows, columns, first)
    elif kind == _SCALED and len(packed) >= SCALED.size:
        _, columns, group_rows, group_columns, first = SCALED.unpack_from(packed)
        view = Scaled(columns, group_rows, group_columns, bytes(packed[SCALED.size :]), first)
    else:
        raise CorruptFrame(f"{len(packed)} bytes are no view of kind {kind}")
    if pack_view(view) != packed:
        raise CorruptFrame("unused bytes of the frame header are not zero")
    return view

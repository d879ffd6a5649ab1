"""Frames as they lie in a device's memory: stored bytes, tables, and structs that describe them."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs._native import PreludeModel
from deltahub.codecs.blocks import GUARD_BYTES, BlockFault, guard
from deltahub.codecs.cuda.device import Bytes
from deltahub.codecs.cuda.layout import BLOCK, FACTOR, FRAME, MAX_CLASSES
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame, InvalidInput
from deltahub.codecs.fm_delta.codec import PLAIN_VERSION
from deltahub.codecs.frames.view import FrameView
from deltahub.codecs.protocol import BlockMode, Buffer, Geometry
from deltahub.codecs.words import WORD_KINDS

ALIGNMENT: Final = 16
DECODABLE: Final = ("raw", "neuzip_lossless", "fm_delta")
_EXPONENT_BITS: Final = {
    DType.F64: 11,
    DType.F32: 8,
    DType.F16: 5,
    DType.BF16: 8,
    DType.F8_E4M3: 4,
    DType.F8_E5M2: 5,
}

Structs = npt.NDArray[np.void]


class Image:
    """The bytes of some frames, and what kernels must know of them.

    Offsets count from the begin of the memory that will hold the image; 0 means nothing.
    CorruptFrame if a frame cannot be decoded, whatever its base: all but the streams is checked.
    """

    def __init__(self, frames: Sequence[tuple[FrameView, Buffer]]) -> None:
        self._parts: list[tuple[int, Buffer]] = []
        self.size = ALIGNMENT
        self.frames: Structs = np.zeros(len(frames), FRAME)
        self.kernels: list[str] = []  # that decode each frame
        self.n_blocks: list[int] = []
        rows: list[tuple[int, ...]] = []
        n_row_values = []
        for frame, (view, body) in zip(self.frames, frames, strict=True):
            added, n_values = self._add_frame(frame, view, body)
            rows += added
            self.n_blocks.append(len(added))
            n_row_values.append(n_values)
        self.blocks: Structs = np.array(rows, BLOCK)
        # Scratch memory, after all that is uploaded.
        self.size_with_row_values = self.size
        for frame, n_values in zip(self.frames, n_row_values, strict=True):
            frame["row_values"] = self.size_with_row_values
            self.size_with_row_values += _aligned(2 * n_values)

    def bytes_at(self, address: int) -> tuple[Bytes, Structs]:
        """The image, and the frames' structs for an image that lies at this address."""
        image = np.zeros(self.size, np.uint8)
        for offset, part in self._parts:
            data = np.frombuffer(part, np.uint8)
            image[offset : offset + len(data)] = data
        frames = self.frames.copy()
        for name in FRAME.names or ():
            if FRAME[name].itemsize == 8:
                frames[name] += np.where(frames[name] != 0, np.uint64(address), np.uint64(0))
        return image, frames

    def _add(self, data: Buffer) -> int:
        """The offset of these bytes, which are added; 0 if there are none."""
        if len(data) == 0:
            return 0
        offset = self.size
        self._parts.append((offset, data))
        self.size += _aligned(len(data))
        return offset

    def _add_frame(
        self, frame: np.void, view: FrameView, body: Buffer
    ) -> tuple[list[tuple[int, ...]], int]:
        """(the fields of each block's struct, the number of all blocks' row values)."""
        header, geometry = view.header, view.geometry
        stored = memoryview(body).cast("B")
        if header.codec not in DECODABLE:
            raise InvalidInput(
                f"a frame of codec {header.codec}; a GPU decodes {', '.join(DECODABLE)}:"
                " decode this one with FrameView.decode_into"
            )
        if len(stored) != header.body_length:
            raise CorruptFrame(f"{len(stored)} bytes for blocks of {header.body_length}")
        model = model_of(view)
        frame["columns"] = geometry.columns
        if model is not None:
            self._add_model(frame, header.dtype, model)
        is_delta = model is not None and header.codec == "fm_delta"
        self.kernels.append(
            f"decode_{'fm_delta' if is_delta else 'floats'}_{8 * header.dtype.itemsize}"
        )
        values_a_row = 2 + int(frame["rank"]) if is_delta else 0
        begin_of_stored, n_values = self.size, 0
        blocks: list[tuple[int, ...]] = []
        frame["stored"] = begin_of_stored
        for i, (mode, length, checksum) in enumerate(view.blocks.rows(0, header.n_blocks)):
            own, stored = stored[:length], stored[length:]
            if mode == BlockMode.CODED:
                if model is None:
                    raise CorruptFrame(f"block {i}: a coded block, but the frame has no tables")
                if length <= GUARD_BYTES or own[:GUARD_BYTES] != guard(own[GUARD_BYTES:]):
                    raise BlockFault.GUARD.error(i, has_base=header.base is not None)
                own = own[GUARD_BYTES:]
            stored_begin = max(self._add(own) - begin_of_stored, 0)
            begin, end = geometry.block_bytes(i)
            shape = _shape_of(geometry, i)
            rest = len(own), int(mode), i, *shape
            blocks.append((stored_begin, begin, end - begin, checksum, n_values, *rest))
            if mode == BlockMode.CODED:
                n_values += values_a_row * shape[0]
        return blocks, n_values

    def _add_model(self, frame: np.void, dtype: DType, model: PreludeModel) -> None:
        exponent_bits = _EXPONENT_BITS.get(dtype, 0)
        frame["exponent_bits"] = exponent_bits
        frame["mantissa_bits"] = 8 * dtype.itemsize - 1 - exponent_bits if exponent_bits else 0
        entries = model.entries
        frame["entries"], frame["n_entries"] = self._add(entries), len(entries) // 4
        frame["table_log"], frame["zero_bits"] = model.table_log, model.zero_bits
        frame["n_low"] = model.n_low
        frame["classes"] = self._add(model.classes)
        frame["last_class"], frame["offset"] = model.last_class, model.offset
        frame["has_row_scales"] = model.row_scales is not None
        frame["row_scales"] = model.row_scales or 0
        frame["column_scales"] = self._add(model.column_scales)
        frame["decay_bits"], frame["flags"] = model.decay_bits, model.flags
        frame["decay_steps"] = self._add(model.decay_steps)
        frame["floor"], frame["is_product_rounded"] = model.floor, model.is_product_rounded
        frame["rank"] = len(model.left)
        frame["left"] = self._add(np.array(model.left, FACTOR).tobytes())
        frame["right"] = self._add(model.right)


def model_of(view: FrameView) -> PreludeModel | None:
    """What a frame's prelude says; None if it has none, and so no coded block."""
    header, prelude = view.header, view.prelude
    if header.codec == "raw":
        if prelude:
            raise CorruptFrame("a raw frame has no prelude")
        return None
    if not prelude and (header.codec != "fm_delta" or header.codec_version == PLAIN_VERSION):
        return None
    kind = WORD_KINDS[header.dtype]
    try:
        if header.codec == "neuzip_lossless":
            return PreludeModel.of_floats(kind, prelude)
        version = header.codec_version
        return PreludeModel.of_deltas(kind, prelude, header.rows, header.columns, version)
    except ValueError as exc:
        raise CorruptFrame(f"{header.codec} prelude: {exc}") from exc


def _shape_of(geometry: Geometry, index: int) -> tuple[int, int, int]:
    """(rows, columns, first column) of a block."""
    first, count = geometry.block_elements(index)
    if geometry.parts_per_row > 1:
        return 1, count, first % geometry.columns
    return count // geometry.columns, geometry.columns, 0


def shared_bytes_before_rings(frame: np.void) -> int:
    """Of the shared memory of a thread block: its tables and classes."""
    return 4 * (int(frame["n_entries"]) + MAX_CLASSES)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

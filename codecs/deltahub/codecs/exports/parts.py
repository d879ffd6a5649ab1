"""A part of a weight's slice: one frame, opened where it lies."""

from dataclasses import dataclass

from blake3 import blake3

from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.frames.encode import FrameRange, TensorSpec, encode_frame
from deltahub.codecs.frames.view import FrameView


@dataclass(frozen=True)
class Part:
    """A frame of a slice, opened: its view, and its body."""

    view: FrameView
    body: memoryview

    @property
    def size_bytes(self) -> int:
        return self.view.header.frame_length

    def decode_into(
        self, out: memoryview, threads: int = 1, base: memoryview | None = None
    ) -> None:
        """Fill `out` with all of the frame's bytes, checked. base: of a delta. CorruptFrame."""
        self.view.decode_into(0, self.view.header.n_blocks, self.body, base, out, threads)

    def decoded(self) -> bytearray:
        out = bytearray(self.view.header.size_bytes)
        self.decode_into(memoryview(out))
        return out

    def decode_range(self, begin: int, end: int, out: memoryview, threads: int = 1) -> None:
        """Fill `out` with the frame's bytes [begin, end), from the blocks that hold them. A frame
        with a base has zeros as base.
        """
        view = self.view
        i, j = view.blocks_of_bytes(begin, end)
        low, high = view.span(i, j)
        first, last = (at - view.header.prefix_length for at in view.stored_span(i, j))
        is_whole = (low, high) == (begin, end)
        blocks = out if is_whole else memoryview(bytearray(high - low))
        base = None if view.header.base is None else memoryview(bytes(high - low))
        view.decode_into(i, j, self.body[first:last], base, blocks, threads)
        if not is_whole:
            out[:] = blocks[begin - low : end - low]

    def bytes_of(self, begin: int, end: int) -> memoryview:
        """Bytes [begin, end) of a raw frame without coded blocks, where they lie, checked."""
        i, j = self.view.blocks_of_bytes(begin, end)
        low, high = self.view.span(i, j)
        blocks = self.body[low:high]
        if not self.view.holds(i, j, blocks):
            raise CorruptFrame(
                f"one of blocks {i} to {j} has other bytes than were written: damaged"
            )
        return blocks[begin - low : end - low]


def check_raw(part: str, opened: Part) -> None:
    """CorruptFrame unless no block of the frame is coded, so that its bytes are read in place."""
    header = opened.view.header
    if header.codec != "raw":
        raise CorruptFrame(f"the part {part} is a frame of {header.codec}")
    if (header.prelude_length, header.body_length) != (0, header.size_bytes):
        raise CorruptFrame(f"the part {part} is not raw in every block")


def check_contents(part: str, opened: Part, dtype: DType, count: int) -> None:
    """CorruptFrame unless the frame holds a tensor of `count` elements of this dtype, whole."""
    header = opened.view.header
    if (header.dtype, header.count) != (dtype, count):
        raise CorruptFrame(
            f"the part {part} holds {header.count} elements of {header.dtype.name}, not"
            f" {count} of {dtype.name}"
        )
    if header.tensor_count != count:
        raise CorruptFrame(f"the part {part} is a range of a longer tensor")


def frame_of(dtype: DType, elements: memoryview, codec: str, threads: int) -> bytes:
    """A frame of one row of elements."""
    data = elements.cast("B")
    count = len(data) // dtype.itemsize
    spec = TensorSpec(blake3(data).digest(), dtype, 1, count)
    return encode_frame(spec, FrameRange(0, count, 1, count), data, codec=codec, threads=threads)

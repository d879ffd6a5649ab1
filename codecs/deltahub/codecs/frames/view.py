"""Reads frames: the block table, and any range of blocks straight into the caller's buffer."""

from dataclasses import dataclass, field

import xxhash

from deltahub.codecs._native import BlockTable
from deltahub.codecs.blocks import block_checksum, decoded_spans
from deltahub.codecs.errors import CorruptFrame, InvalidInput, WrongBase
from deltahub.codecs.frames.header import CHECKSUM, FrameHeader, parse_header
from deltahub.codecs.protocol import Buffer, Geometry
from deltahub.codecs.registry import BY_ID


@dataclass(slots=True)
class FrameView:
    """A frame's header, prelude and block table, parsed and checked, without the body."""

    header: FrameHeader
    prelude: bytes
    blocks: BlockTable
    # Derived from the header once, because readers use them for every range of blocks.
    geometry: Geometry = field(init=False, repr=False, compare=False)
    _size: int = field(init=False, repr=False, compare=False)
    # Decoded bytes of each block but the last; 0 if blocks are parts of rows.
    _block_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.geometry = geometry = self.header.geometry
        self._size = geometry.size_bytes
        self._block_bytes = geometry.block_bytes(0)[1] if geometry.parts_per_row == 1 else 0

    @classmethod
    def parse(cls, prefix: Buffer) -> "FrameView":
        """The view of a frame's first header.prefix_length bytes; later bytes are ignored."""
        view = memoryview(prefix).cast("B")
        header = parse_header(view)
        begin, end = header.header_length, header.prefix_length - CHECKSUM.size
        if len(view) < end + CHECKSUM.size:
            raise CorruptFrame("the frame is cut off before its first block")
        if xxhash.xxh3_64_intdigest(view[begin:end]) != CHECKSUM.unpack_from(view, end)[0]:
            raise CorruptFrame("the checksum of prelude and block table does not match")
        table = begin + header.prelude_length
        try:
            blocks = BlockTable(
                view[table:end],
                header.rows,
                header.columns,
                header.dtype.itemsize,
                header.rows_per_block,
                header.parts_per_row,
                header.base is not None,
                header.body_length,
            )
        except ValueError as exc:
            raise CorruptFrame(str(exc)) from exc
        return cls(header, bytes(view[begin:table]), blocks)

    def block_of_byte(self, byte: int) -> int:
        """The block that holds this byte of the frame's decoded bytes."""
        if not 0 <= byte < self._size:
            raise InvalidInput(f"byte {byte} of a frame of {self._size}")
        if self._block_bytes:
            return byte // self._block_bytes
        geometry = self.geometry
        row, column = divmod(byte // geometry.dtype.itemsize, geometry.columns)
        return row * geometry.parts_per_row + column // geometry.part_width

    def span(self, i: int, j: int) -> tuple[int, int]:
        """(begin, end) of blocks [i, j) in the frame's decoded bytes."""
        self._check_blocks_exist(i, j)
        if self._block_bytes:
            return i * self._block_bytes, min(j * self._block_bytes, self._size)
        return self.geometry.block_bytes(i)[0], self.geometry.block_bytes(j - 1)[1]

    def block_span(self, i: int) -> tuple[int, int]:
        """(begin, end) of block i in the frame's decoded bytes."""
        return self.span(i, i + 1)

    def stored_span(self, i: int, j: int) -> tuple[int, int]:
        """(begin, end) of blocks [i, j) in the encoded frame, counted from its magic."""
        self._check_blocks_exist(i, j)
        body = self.header.prefix_length
        begin, end = self.blocks.stored_span(i, j)
        return body + begin, body + end

    def blocks_of_bytes(self, begin: int, end: int) -> tuple[int, int]:
        """The blocks [i, j) that hold decoded bytes [begin, end); InvalidInput if begin >= end."""
        if begin >= end:
            raise InvalidInput(f"no bytes from {begin} to {end}")
        return self.block_of_byte(begin), self.block_of_byte(end - 1) + 1

    def decode_into(
        self,
        i: int,
        j: int,
        payload: Buffer,
        base: Buffer | None,
        out: memoryview,
        threads: int = 1,
    ) -> None:
        """Fill `out` with the decoded bytes of blocks [i, j), each checked against its XXH3.

        payload: the stored bytes of these blocks (stored_span). base: the aligned base, in the
        coding dtype, of exactly the decoded span, or of each input one after the other; None if
        and only if the frame has no base (else WrongBase). out: exactly the decoded span. After
        CorruptFrame, `out` holds arbitrary bytes.
        """
        low, high = self.span(i, j)
        span = high - low
        header = self.header
        begin, end = self.blocks.stored_span(i, j)
        stored = memoryview(payload).cast("B")
        target = out.cast("B")
        if len(stored) != end - begin:
            raise CorruptFrame(f"blocks {i} to {j} have {end - begin} bytes, not {len(stored)}")
        if len(target) != span:
            raise InvalidInput(f"blocks {i} to {j} decode to {span} bytes, room for {len(target)}")
        if (base is None) != (header.base is None):
            raise WrongBase(f"a {header.codec} frame {'with' if base else 'without'} a base")
        aligned = None if base is None else memoryview(base).cast("B")
        if aligned is not None and len(aligned) != header.base_bytes(span):
            raise WrongBase(f"a base of {len(aligned)} bytes for {span} decoded bytes")
        BY_ID[header.codec].decode(
            self.geometry,
            header.codec_version,
            self.prelude,
            self.blocks,
            i,
            j,
            stored,
            aligned,
            target,
            max(threads, 1),
        )

    def holds(self, i: int, j: int, decoded: Buffer) -> bool:
        """Whether `decoded` has the length and the XXH3 checksums of blocks [i, j)."""
        low, high = self.span(i, j)
        whole = memoryview(decoded).cast("B")
        if len(whole) != high - low:
            return False
        checksums = (checksum for _, _, checksum in self.blocks.rows(i, j))
        spans = decoded_spans(self.geometry, i, j - i)
        return all(
            block_checksum(whole[begin:end], index) == checksum
            for index, (begin, end), checksum in zip(range(i, j), spans, checksums, strict=True)
        )

    def _check_blocks_exist(self, i: int, j: int) -> None:
        if not 0 <= i < j <= self.header.n_blocks:
            raise InvalidInput(f"blocks {i} to {j} of a frame with {self.header.n_blocks}")


def open_frame(frame: Buffer) -> tuple[FrameView, memoryview]:
    """The view of a whole frame, and its body. CorruptFrame if bytes are missing or left over."""
    whole = memoryview(frame).cast("B")
    view = FrameView.parse(whole)
    length, prefix = view.header.frame_length, view.header.prefix_length
    if len(whole) != length:
        raise CorruptFrame(f"{len(whole)} bytes for a frame of {length}")
    return view, whole[prefix:]


def decode_frame(frame: Buffer, base: Buffer | None = None, threads: int = 1) -> bytearray:
    """All decoded bytes of a whole frame (at most 64 MiB). base: aligned, in the coding dtype."""
    view, body = open_frame(frame)
    out = bytearray(view.header.size_bytes)
    view.decode_into(0, view.header.n_blocks, body, base, memoryview(out), threads)
    return out

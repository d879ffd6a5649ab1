"""Reading frames: the block table, and any run of blocks straight into the caller's buffer."""

from dataclasses import dataclass
from itertools import accumulate

import xxhash

from deltahub.codecs.errors import CorruptFrame, InvalidInput, WrongBase
from deltahub.codecs.frame_header import CHECKSUM, TABLE_ROW, FrameHeader, parse_header
from deltahub.codecs.protocol import BlockMode, Buffer
from deltahub.codecs.registry import BY_ID


@dataclass(frozen=True)
class FrameView:
    """A frame's header, prelude and block table, parsed and checked; the body is elsewhere."""

    header: FrameHeader
    prelude: bytes
    modes: list[int]
    checksums: list[int]
    lengths: list[int]  # of the stored blocks
    stored_ends: list[int]  # where each block ends in the body

    @classmethod
    def parse(cls, prefix: Buffer) -> "FrameView":
        """The view of a frame's first header.prefix_length bytes; more are not looked at."""
        view = memoryview(prefix).cast("B")
        header = parse_header(view)
        if len(view) < header.prefix_length:
            raise CorruptFrame("the frame is cut off before its first block")
        table_end = header.prefix_length - CHECKSUM.size
        checked = view[header.header_length : table_end]
        if xxhash.xxh3_64_intdigest(checked) != CHECKSUM.unpack_from(view, table_end)[0]:
            raise CorruptFrame("the checksum of prelude and block table does not match")
        table = bytes(checked[header.prelude_length :])
        rows = list(TABLE_ROW.iter_unpack(table))
        if b"".join([TABLE_ROW.pack(*row) for row in rows]) != table:
            raise CorruptFrame("unused bytes of the block table are not zero")
        lengths = [row[0] for row in rows]
        modes = [row[1] for row in rows]
        _check_blocks(header, modes, lengths)
        return cls(
            header,
            bytes(checked[: header.prelude_length]),
            modes,
            [row[2] for row in rows],
            lengths,
            list(accumulate(lengths)),
        )

    def block_of_byte(self, byte: int) -> int:
        """The block that holds this byte of the frame's decoded bytes."""
        if not 0 <= byte < self.header.size_bytes:
            raise InvalidInput(f"byte {byte} of a frame of {self.header.size_bytes}")
        geometry = self.header.geometry
        row, column = divmod(byte // geometry.dtype.itemsize, geometry.columns)
        if geometry.parts_per_row > 1:
            return row * geometry.parts_per_row + column // geometry.part_width
        return row // geometry.rows_per_block

    def block_span(self, i: int) -> tuple[int, int]:
        """(begin, end) of block i in the frame's decoded bytes."""
        self._check_blocks_exist(i, i + 1)
        return self.header.geometry.block_bytes(i)

    def stored_span(self, i: int, j: int) -> tuple[int, int]:
        """(begin, end) of blocks [i, j) in the frame's own bytes, from its magic on."""
        self._check_blocks_exist(i, j)
        body = self.header.prefix_length
        return body + self._stored_begin(i), body + self.stored_ends[j - 1]

    def blocks_of_bytes(self, begin: int, end: int) -> tuple[int, int]:
        """The blocks [i, j) that hold decoded bytes [begin, end), which are not empty."""
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
        coding dtype, of exactly the decoded span; None if and only if the frame has no base
        (else WrongBase). out: exactly the decoded span. After CorruptFrame, `out` is worthless.
        """
        begin, end = self.stored_span(i, j)
        stored = memoryview(payload).cast("B")
        target = out.cast("B")
        geometry = self.header.geometry
        span = geometry.block_bytes(j - 1)[1] - geometry.block_bytes(i)[0]
        if len(stored) != end - begin:
            raise CorruptFrame(f"blocks {i} to {j} have {end - begin} bytes, not {len(stored)}")
        if len(target) != span:
            raise InvalidInput(f"blocks {i} to {j} decode to {span} bytes, room for {len(target)}")
        BY_ID[self.header.codec].decode(
            geometry,
            self.header.codec_version,
            memoryview(self.prelude),
            i,
            self.modes[i:j],
            self.lengths[i:j],
            self.checksums[i:j],
            stored,
            self._checked_base(base, span),
            target,
            max(threads, 1),
        )

    def _checked_base(self, base: Buffer | None, span: int) -> memoryview | None:
        if (base is None) != (self.header.base is None):
            raise WrongBase(f"a {self.header.codec} frame {'with' if base else 'without'} a base")
        if base is None:
            return None
        view = memoryview(base).cast("B")
        if len(view) != span:
            raise WrongBase(f"a base of {len(view)} bytes for {span} decoded bytes")
        return view

    def _stored_begin(self, i: int) -> int:
        return self.stored_ends[i - 1] if i > 0 else 0

    def _check_blocks_exist(self, i: int, j: int) -> None:
        if not 0 <= i < j <= self.header.n_blocks:
            raise InvalidInput(f"blocks {i} to {j} of a frame with {self.header.n_blocks}")


def _check_blocks(header: FrameHeader, modes: list[int], lengths: list[int]) -> None:
    if sum(lengths) != header.body_length:
        raise CorruptFrame("the blocks' lengths do not sum to the body's")
    sizes = header.geometry.block_sizes(0, header.n_blocks)
    for mode, length, size in zip(modes, lengths, sizes, strict=True):
        if mode == BlockMode.RAW:
            is_valid = length == size
        elif mode == BlockMode.UNCHANGED:
            is_valid = length == 0 and header.base is not None
        else:
            is_valid = mode == BlockMode.CODED and 1 <= length < size
        if not is_valid:
            raise CorruptFrame(f"a block of mode {mode} with {length} stored bytes")


def open_frame(frame: Buffer) -> tuple[FrameView, memoryview]:
    """The view of a whole frame and its body; CorruptFrame if bytes are missing or left over."""
    whole = memoryview(frame).cast("B")
    view = FrameView.parse(whole)
    if len(whole) != view.header.frame_length:
        raise CorruptFrame(f"{len(whole)} bytes for a frame of {view.header.frame_length}")
    return view, whole[view.header.prefix_length :]


def decode_frame(frame: Buffer, base: Buffer | None = None, threads: int = 1) -> bytearray:
    """All decoded bytes of a whole frame (at most 64 MiB). base: aligned, in the coding dtype."""
    view, body = open_frame(frame)
    out = bytearray(view.header.size_bytes)
    view.decode_into(0, view.header.n_blocks, body, base, memoryview(out), threads)
    return out

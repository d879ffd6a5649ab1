"""The interface of the frame layer and the codecs: geometry, block modes, encode, decode."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from io import BytesIO
from itertools import accumulate
from typing import ClassVar, Protocol

from deltahub.codecs._native import BlockTable, uninitialized_bytes
from deltahub.codecs.dtypes import DType

Buffer = bytes | bytearray | memoryview


class BlockMode(IntEnum):
    """How one block is stored."""

    UNCHANGED = 0  # decoded bytes = the base's bytes; nothing stored
    RAW = 1  # decoded bytes stored as they are
    CODED = 2  # encoded by the codec: at least 1 byte, and fewer than the decoded bytes


class Effort(IntEnum):
    """How much work an encoder spends. Frames record it; decoders ignore it."""

    FAST = 1  # sampled statistics, and no search for a low-rank product
    DEFAULT = 2
    MAX = 3


@dataclass(slots=True, unsafe_hash=True)
class Geometry:
    """How a frame's rows x columns elements are split into blocks: whole rows, or parts of a row.

    The frame layer checks, before it calls a codec: rows, columns >= 1;
    1 <= rows_per_block <= rows; rows_per_block or parts_per_row is 1; no part is empty.
    """

    dtype: DType
    rows: int
    columns: int
    rows_per_block: int
    parts_per_row: int

    @property
    def count(self) -> int:
        return self.rows * self.columns

    @property
    def size_bytes(self) -> int:
        return self.rows * self.columns * self.dtype.itemsize

    @property
    def _bytes_of_rows(self) -> int:
        """Decoded bytes of a block of whole rows that is not the last one."""
        return self.rows_per_block * self.columns * self.dtype.itemsize

    @property
    def part_width(self) -> int:
        """Elements of each part of a row; the last part may be shorter."""
        return -(-self.columns // self.parts_per_row)

    def block_sizes(self, first: int, n_blocks: int) -> list[int]:
        """Decoded bytes of each of `n_blocks` blocks from `first` on."""
        if self.parts_per_row == 1:
            begin, end = self.block_bytes(first + n_blocks - 1)
            return [self._bytes_of_rows] * (n_blocks - 1) + [end - begin]
        spans = map(self.block_bytes, range(first, first + n_blocks))
        return [end - begin for begin, end in spans]

    @property
    def n_blocks(self) -> int:
        if self.parts_per_row > 1:
            return self.rows * self.parts_per_row
        return -(-self.rows // self.rows_per_block)

    def block_elements(self, index: int) -> tuple[int, int]:
        """(first element, number of elements) of a block, counted within the frame."""
        if self.parts_per_row > 1:
            row, part = divmod(index, self.parts_per_row)
            left = part * self.part_width
            return row * self.columns + left, min(self.part_width, self.columns - left)
        row = index * self.rows_per_block
        return row * self.columns, min(self.rows_per_block, self.rows - row) * self.columns

    def block_bytes(self, index: int) -> tuple[int, int]:
        """(begin, end) of a block in the frame's decoded bytes."""
        if self.parts_per_row == 1:
            begin = index * self._bytes_of_rows
            return begin, min(begin + self._bytes_of_rows, self.size_bytes)
        first, count = self.block_elements(index)
        return first * self.dtype.itemsize, (first + count) * self.dtype.itemsize


EncodeAll = Callable[[memoryview], tuple[list[int], list[int], list[int]]]
"""encode(room): writes all blocks to the begin of `room`; their modes, lengths, checksums."""


class StoredBlocks:
    """Stored blocks, back to back in one buffer, which becomes the frame without a second copy.
    A frame has up to 64 MiB of blocks.

    room: bytes to allocate for the blocks; they take memory only once they are written.
    front: bytes to leave free before the blocks, for the frame's header, prelude and table.
    """

    def __init__(
        self, blocks: Iterable[tuple[int, Buffer]] = (), room: int = 0, front: int = 0
    ) -> None:
        self.modes: list[int] = []
        self.lengths: list[int] = []
        self._front = front
        # Where a buffer grows among other allocations, it leaves holes of its own size behind.
        self._bytes = BytesIO(uninitialized_bytes(front + room))
        self._bytes.seek(front)
        for mode, stored in blocks:
            self.append(mode, stored)

    def fill(self, encode: EncodeAll) -> list[int]:
        """Writes all blocks with `encode`, within `room` bytes; their checksums."""
        with self._bytes.getbuffer() as room:
            self.modes, self.lengths, checksums = encode(room[self._front :])
        self._bytes.seek(self._front + sum(self.lengths))
        return checksums

    def append(self, mode: int, stored: Buffer) -> None:
        self.modes.append(mode)
        self.lengths.append(len(stored))
        self._bytes.write(stored)

    @property
    def size_bytes(self) -> int:
        return self._bytes.tell() - self._front

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        with self._bytes.getbuffer() as stored:
            begins = accumulate(self.lengths[:-1], initial=self._front)
            spans = zip(self.modes, begins, self.lengths, strict=True)
            return iter([(mode, bytes(stored[at : at + n])) for mode, at, n in spans])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredBlocks) and [*self] == [*other]

    def with_prefix(self, prefix: bytes) -> bytes:
        """`prefix`, of `front` bytes, and then all blocks. This object loses its blocks."""
        self._bytes.truncate()
        with self._bytes.getbuffer() as whole:
            whole[: self._front] = prefix
        made, self._bytes = self._bytes.getvalue(), BytesIO()
        return made


@dataclass(slots=True)
class EncodedBody:
    """The encoded elements of one frame. The frame layer adds the block table and header."""

    prelude: bytes  # data that all blocks need, at most MAX_PRELUDE bytes
    blocks: StoredBlocks  # the blocks of the geometry, in order
    checksums: list[int]  # XXH3-64 of each block's decoded bytes, seeded with its index
    effort: int = 0  # for the header; 0 if the codec has no levels of effort
    version: int | None = None  # for the header; None: the codec's newest


class Codec(Protocol):
    """Encodes elements, against an aligned base or without one, as blocks, and decodes blocks.

    A codec also decodes raw and unchanged blocks, which are the same in all codecs. It reads
    every version of its frames for ever.
    """

    codec_id: ClassVar[str]  # in manifests and URLs; never renamed or reused
    number: ClassVar[int]  # the same codec in a frame header, one byte
    version: ClassVar[int]  # the newest; encode() writes and decode() reads 1..version
    n_inputs: ClassVar[int]  # aligned inputs of every frame: 0, 1 (a base) or 2

    def block_bytes(self, dtype: DType) -> int:
        """The preferred number of decoded bytes of a block."""
        ...

    def encode(
        self,
        geometry: Geometry,
        source: memoryview,
        base: memoryview | None,
        effort: Effort,
        threads: int,
        front: int = 0,
    ) -> EncodedBody:
        """The encoded blocks of one frame.

        source: geometry.size_bytes contiguous bytes. base: n_inputs times as many, the inputs one
        after the other; None if and only if n_inputs is 0.
        front: bytes of the frame before its blocks, without the prelude. The result leaves
        space for them and for the prelude before its blocks.
        The result is the same for any number of threads.
        """
        ...

    def decode(
        self,
        geometry: Geometry,
        version: int,
        prelude: bytes,
        blocks: BlockTable,
        first: int,
        end: int,
        payload: memoryview,
        base: memoryview | None,
        out: memoryview,
        threads: int,
    ) -> None:
        """Fill `out` with blocks [first, end). CorruptFrame if a block does not decode or has
        another checksum than the frame says; the error names the first such block.

        The frame layer has checked: the version; that the blocks exist; every mode against its
        length (UNCHANGED 0 and only with a base, RAW the decoded size, CODED 1 to decoded size
        - 1); payload is exactly the sum of the lengths; out is exactly the decoded span, and base
        (if any) n_inputs times as much, the inputs one after the other, contiguous bytes. Prelude
        and payload may be hostile.
        """
        ...

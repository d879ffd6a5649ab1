"""What the frame layer and a codec agree on: geometry, block modes, encode and decode."""

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
    CODED = 2  # the codec's own form: at least 1 byte, and fewer than the decoded bytes


class Effort(IntEnum):
    """How much work an encoder spends. Frames record it; decoders need not know."""

    FAST = 1  # sampled statistics, no search for low rank
    DEFAULT = 2
    MAX = 3


@dataclass(slots=True, unsafe_hash=True)
class Geometry:
    """How a frame's rows x columns elements fall into blocks: whole rows, or parts of one row.

    Valid (the frame layer checks it before a codec sees it): rows, columns >= 1;
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
        """Of a block that has whole rows and is not the last one."""
        return self.rows_per_block * self.columns * self.dtype.itemsize

    @property
    def part_width(self) -> int:
        """Elements in each part of a row but the last, which may be shorter."""
        return -(-self.columns // self.parts_per_row)

    def block_sizes(self, first: int, n_blocks: int) -> list[int]:
        """Decoded bytes of each of the blocks from `first` on."""
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


EncodeRun = Callable[[memoryview], tuple[list[int], list[int], list[int]]]
"""encode(room): puts all blocks at its beginning; their modes, lengths and checksums."""


class StoredBlocks:
    """Blocks as they are stored, back to back in one buffer: a frame has up to 64 MiB of them, and
    becomes one object without a second copy of them.

    room: bytes for which the buffer need not grow; they take memory only once they are written.
    front: bytes that will stand before the blocks.
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

    def fill(self, encode: EncodeRun) -> list[int]:
        """All blocks at once, in the room that there is; the checksum of each."""
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

    def behind(self, prefix: bytes) -> bytes:
        """These bytes, for which there is room, and then all blocks; they are gone from here."""
        self._bytes.truncate()
        with self._bytes.getbuffer() as whole:
            whole[: self._front] = prefix
        made, self._bytes = self._bytes.getvalue(), BytesIO()
        return made


@dataclass(slots=True)
class EncodedBody:
    """What a codec makes of one frame's elements; the frame layer writes table and header."""

    prelude: bytes  # what all blocks need, at most MAX_PRELUDE bytes
    blocks: StoredBlocks  # those of the geometry, in order
    checksums: list[int]  # XXH3-64 of each block's decoded bytes, seeded with its index
    effort: int = 0  # for the header: 0 where the codec knows no levels of effort
    version: int | None = None  # for the header, where it is not the codec's newest


class Codec(Protocol):
    """Elements and an aligned base in, blocks out, and back.

    A codec gets every block, whatever its mode: two modes are the same in all codecs. What a
    version wrote is read for ever.
    """

    codec_id: ClassVar[str]  # in manifests and URLs; never renamed, never reused
    number: ClassVar[int]  # the same identity in a frame header, one byte
    version: ClassVar[int]  # the newest; encode() writes and decode() reads 1..version
    needs_base: ClassVar[bool]  # True: always with a base; False: never with one

    def block_bytes(self, dtype: DType) -> int:
        """The preferred size of a decoded block, in bytes."""
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
        """The elements of one frame, block by block.

        source, base: geometry.size_bytes contiguous bytes each; base if and only if needs_base.
        front: bytes that the frame has before its blocks, beside the prelude; there is room for
        both before those of the result.
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
        """Fill `out` with blocks [first, end); CorruptFrame if they cannot be, or if the bytes of
        one have another checksum than the frame says. The first such one is named.

        The frame layer has checked: the version; that there are such blocks; every mode against its
        length (UNCHANGED 0 and only with a base, RAW the decoded size, CODED 1 to decoded size
        - 1); payload is exactly their sum; base (if any) and out are exactly the decoded span,
        contiguous bytes. Prelude and payload are hostile.
        """
        ...

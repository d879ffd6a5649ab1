"""Native kernels of deltahub.codecs."""

from collections.abc import Sequence
from typing import Annotated, Any, overload

import numpy
import numpy.typing
from numpy.typing import NDArray


def kernel_names() -> list[str]:
    """
    The sets of kernels that this processor can run, from the slowest to the fastest.
    """

def use_kernels(name: str) -> None:
    """
    Encoders and decoders made from now on use these kernels. All sets write and read the same
    bytes. ValueError if the processor cannot run them.
    """

def join_byte_groups(grouped: bytes | bytearray | memoryview, out: bytearray | memoryview) -> None:
    """
    Fills `out` with the bytes of `grouped`, in which bytes 0, 4, 8... of `out` come first, then
    1, 5, 9..., and so on. The two must not overlap. ValueError unless they have the same size.
    """

def uninitialized_bytes(size: int) -> bytes:
    """
    `size` bytes of arbitrary values, as the buffer of an io.BytesIO that overwrites all bytes
    before they are read. Zeroing them would cost as much as copying them.
    """

def estimate_floats(kind: int, source: bytes | bytearray | memoryview) -> tuple[int, int]:
    """
    (estimate, lower bound) of the bytes that neuzip_lossless takes for these words.
    ValueError for the same words as NeuzipEncoder.
    """

FAULT_GUARD: int = 1

FAULT_STREAM: int = 2

FAULT_OTHER_BYTES: int = 3

class BlockTable:
    """
    The block table of a frame: mode, stored length and checksum of each block.
    """

    def __init__(self, table: bytes | bytearray | memoryview, rows: int, columns: int, word_bytes: int, rows_per_block: int, parts: int, has_base: bool, stored_bytes: int) -> None:
        """
        Parses the rows of a block table. The frame has rows x columns words. Each block
        holds rows_per_block rows, or each row is divided into `parts` blocks. stored_bytes:
        of all blocks. ValueError if no encoder writes such a table for such a frame.
        """

    def rows(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """
        (mode, stored length, checksum) of each of the blocks [first, end). ValueError if the
        frame has no such blocks.
        """

    def stored_span(self, first: int, end: int) -> tuple[int, int]:
        """
        (begin, end) of blocks [first, end) in the stored bytes. ValueError if the frame has
        no such blocks.
        """

def decode_uncoded_range(blocks: BlockTable, first: int, end: int, payload: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[int, int]:
    """
    Decodes blocks [first, end) of a frame without coded blocks; see
    FmDeltaDecoder.decode_range. base: empty if the frame has no base.
    """

class FmDeltaEncoder:
    """The model of one frame, ready to encode its blocks."""

    def __init__(self, kind: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, rows: int, columns: int, effort: int, left: bytes | bytearray | memoryview, right: bytes | bytearray | memoryview, floor: int, is_rounded: bool, is_strided: bool = False) -> None:
        """
        Plans the model of a frame. kind: see fm_delta.WORD_KINDS. effort: 1 to 3. left,
        right: int16 factors, rows x rank and rank x columns, or empty; floor: the exponent
        of the unit of their product; is_rounded: the product is rounded before it is added.
        is_strided: trailing zero bits that all words have in common are not coded.

        ValueError unless source and base are rows x columns words, and at least one.
        """

    @property
    def prelude(self) -> bytes: ...

    @property
    def version(self) -> int:
        """The version of fm_delta that this prelude has."""

    @property
    def estimated_bytes(self) -> int:
        """An estimate for prelude and blocks."""

    def encode(self, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, row: int, column: int, rows: int, columns: int) -> bytes:
        """
        The stream of one block. source, base: the words of the block, a rectangle of the
        frame that begins at this row and column.
        """

    def encode_all(self, rows_per_block: int, parts: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[list[int], list[int], list[int]]:
        """
        Encodes all blocks of the frame. Fills `out` from its beginning with their stored
        bytes, guards included, and returns (modes, stored lengths, checksums).
        rows_per_block, parts: see BlockTable. The result is the same for any number of
        threads. ValueError unless the sizes match and `out` is at least as large as the
        source.
        """

class FmDeltaDecoder:
    """The model of a prelude, ready to decode blocks."""

    def __init__(self, kind: int, prelude: bytes | bytearray | memoryview, rows: int, columns: int, version: int = 1) -> None:
        """
        ValueError if no encoder of this version of fm_delta writes such a prelude for a
        frame of rows x columns words.
        """

    def decode(self, stream: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, column: int, rows: int, columns: int) -> None:
        """
        Fills `out` with one block of rows x columns words, which begins at this column of
        the frame. ValueError if no encoder writes such a stream.
        """

    def decode_range(self, blocks: BlockTable, first: int, end: int, payload: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[int, int]:
        """
        Fills `out` with blocks [first, end). payload: their stored bytes, guards included.
        Returns the number of intact blocks before the first damaged one, and its fault
        (FAULT_*, or 0 if all are intact); the rest of `out` is then arbitrary. ValueError
        unless the sizes match.
        """

    @staticmethod
    def decode_once(kind: int, prelude: bytes | bytearray | memoryview, version: int, blocks: BlockTable, first: int, end: int, payload: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[int, int]:
        """
        The same as FmDeltaDecoder(...).decode_range(...), without making an object.
        ValueError as from both.
        """

class NeuzipEncoder:
    """The table of one frame, ready to encode its blocks."""

    def __init__(self, kind: int, source: bytes | bytearray | memoryview) -> None:
        """
        Plans the table of a frame from counts of its exponents and highest mantissa bits.
        ValueError if the words are not floats, or have more exponents than a table holds.
        """

    @property
    def prelude(self) -> bytes: ...

    @property
    def estimated_bytes(self) -> int: ...

    def encode(self, source: bytes | bytearray | memoryview) -> bytes:
        """The stream of one block."""

    def encode_all(self, rows: int, columns: int, rows_per_block: int, parts: int, source: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[list[int], list[int], list[int]]:
        """
        Encodes all blocks of a frame of rows x columns words: see FmDeltaEncoder.encode_all.
        """

class NeuzipDecoder:
    """The table of a prelude, ready to decode blocks."""

    def __init__(self, kind: int, prelude: bytes | bytearray | memoryview) -> None:
        """ValueError if no encoder writes such a prelude."""

    def decode(self, stream: bytes | bytearray | memoryview, out: bytearray | memoryview) -> None:
        """
        Fills `out` with one block. ValueError if no encoder writes such a stream.
        """

    def decode_range(self, blocks: BlockTable, first: int, end: int, payload: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[int, int]:
        """Decodes blocks [first, end): see FmDeltaDecoder.decode_range."""

def estimate_deltas(kind: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, begins: list[int], n: int) -> int:
    """
    An estimate of the bytes that fm_delta takes for ranges of n words, from a sample of them.
    kind: see fm_delta.WORD_KINDS. begins: the first byte of each range. n: a multiple of 64.
    ValueError unless source and base contain these ranges.
    """

def common_stride(kind: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview) -> int:
    """
    The number of trailing zero bits that all words of both have in common and that fm_delta
    need not code. ValueError unless both have the same number of words.
    """

def encode_delta_frame(kind: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, rows: int, columns: int, rows_per_block: int, parts: int, header: bytes | bytearray | memoryview, most: int, effort: int, threads: int) -> bytes | None:
    """
    Encodes a whole fm_delta frame, if it is clear that a frame without a base would be
    larger. The plan is that of FmDeltaEncoder; at effort 2 the factors are those of
    find_low_rank. header: without its checksum, and with zeros for the lengths of prelude
    and body. most: the frame must be smaller than this many bytes. effort: 1 or 2. The
    result is the same for any number of threads.

    None if the words are not floats, if the frame would not be smaller than `most`, or if
    a sample of the words does not show that they take more without the base. At effort 2
    also None for words of another dtype than BF16, or with a common stride. ValueError
    unless the sizes match.
    """

@overload
def weighted_residuals(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], products: numpy.typing.NDArray[numpy.float32], typical: int, octaves: int, margin: float | None, satisfied_weight: float, is_rounded: bool, weights: numpy.typing.NDArray[numpy.float32], residuals: numpy.typing.NDArray[numpy.float32]) -> None:
    """
    Sets the weights of words, and residuals: the distances of products from their targets
    times the weights. typical: the exponent field of the typical ulp. octaves, margin,
    satisfied_weight: see TargetRule in kernels/low_rank/kernels.hpp; without a margin the
    target is the difference from the base. is_rounded: see prediction.LowRank. ValueError
    unless all arrays have the same shape.
    """

@overload
def weighted_residuals(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], products: numpy.typing.NDArray[numpy.float64], typical: int, octaves: int, margin: float | None, satisfied_weight: float, is_rounded: bool, weights: numpy.typing.NDArray[numpy.float32], residuals: numpy.typing.NDArray[numpy.float32]) -> None:
    """The same with float64 products."""

@overload
def least_squares_step(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], own: numpy.typing.NDArray[numpy.float32], given: numpy.typing.NDArray[numpy.float32], typical: int, octaves: int, margin: float | None, satisfied_weight: float, is_rounded: bool, solutions: numpy.typing.NDArray[numpy.float64]) -> None:
    """
    Sets `solutions` to the change of `own` (a row for each row of words) that brings own @
    given (a column for each column of words) closest to the targets of `weighted_residuals`.
    Words may have any strides. In the normal equations, words that are no finer than most of
    their row have the squares of the mean column, and diagonals have a small ridge.
    ValueError if shapes do not fit.
    """

@overload
def least_squares_step(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], own: numpy.typing.NDArray[numpy.float64], given: numpy.typing.NDArray[numpy.float64], typical: int, octaves: int, margin: float | None, satisfied_weight: float, is_rounded: bool, solutions: numpy.typing.NDArray[numpy.float64]) -> None:
    """The same with float64 products."""

def estimated_bits(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], left: numpy.typing.NDArray[numpy.int16], right: numpy.typing.NDArray[numpy.int16], floor: int, is_rounded: bool) -> float:
    """
    An estimate of the bits that words take if they are predicted from the base by factors:
    left is rows x rank, right rank x columns; rank 0 predicts the base. floor, is_rounded:
    see prediction.LowRank. ValueError if shapes do not fit.
    """

def find_low_rank(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], effort: int) -> tuple[bytes, bytes, int, bool, bool]:
    """
    A product of low rank that makes words of BF16, F16 or F32 smaller, given the base.
    Returns its left and right factors, rows x rank and rank x columns of int16, empty if none
    pays; its floor; whether it is rounded before it is added; and whether the words are F32
    whose values are all BF16 or F16 numbers, and it was found in these. effort: 2 or 3. The
    result is the same on every machine. ValueError unless words and base are C-contiguous and
    of the same shape.
    """

def factor_bits(values: Annotated[NDArray[numpy.int16], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> float:
    """
    An estimate of the bits that a factor takes; each column is one component.
    """

def count_infinite(kind: int, words: bytes | bytearray | memoryview) -> int:
    """
    How many words are infinite or NaN. kind: see words.WORD_KINDS; 0 to 5, here and below.
    """

def widen_words(kind: int, words: bytes | bytearray | memoryview, out: numpy.typing.NDArray[numpy.float64]) -> None:
    """Fills `out` with the words as doubles, which is exact."""

def narrow_doubles(kind: int, values: numpy.typing.NDArray[numpy.float64], out: bytearray | memoryview) -> int:
    """
    Fills `out` with the words nearest to these doubles, ties to even. Returns how many are
    infinite or NaN.
    """

def elect_unified(kind: int, base: bytes | bytearray | memoryview, tasks: list[bytes | bytearray | memoryview], out: bytearray | memoryview, threads: int) -> list[tuple[float, float, float, float, float, int, int]]:
    """
    Fills `out` with the unified words of EMR-Merging, and returns for each task the sums
    of |tau|, |uni|, tau * uni, uni^2 and tau^2, and the numbers of masked and of changed
    elements. tau: task - base; uni: unified - base where the task is masked, else 0. Words
    must be finite. The same for any number of threads.
    """

def merge_task(kind: int, base: bytes | bytearray | memoryview, unified: bytes | bytearray | memoryview, task: bytes | bytearray | memoryview, scale: float, out: bytearray | memoryview, threads: int) -> int:
    """
    Fills `out` with a task's words after the merge: where its mask is 1 the base plus
    scale times the unified difference, else the base. Returns how many became infinite.
    """

def pack_mask(kind: int, base: bytes | bytearray | memoryview, unified: bytes | bytearray | memoryview, words: bytes | bytearray | memoryview, scale: float) -> tuple[bytes, int]:
    """
    (bits, their number): for each element whose unified word is not the base's, whether
    the word of merge_task is not the base's; the lowest bit of each byte first. ValueError
    for words that merge_task cannot have made.
    """

def decode_mask(kind: int, base: bytes | bytearray | memoryview, unified: bytes | bytearray | memoryview, bits: bytes | bytearray | memoryview | None, scale: float, out: bytearray | memoryview) -> None:
    """
    Fills `out` with the words of pack_mask. bits: None if all are one. ValueError unless
    there are as many as pack_mask makes, with zeros after the last.
    """

def block_scales(kind: int, words: bytes | bytearray | memoryview, block: int, out: bytearray | memoryview) -> None:
    """
    Fills `out` with the scale of each block of words: the eight highest fraction bits of its
    largest magnitude. kind: of F32, F16 or BF16; see words.WORD_KINDS. block: a power of two,
    8 to 4096. ValueError unless sizes fit, here and below.
    """

def round_words(kind: int, words: bytes | bytearray | memoryview, kept: int, scales: bytes | bytearray | memoryview | None, block: int, out: bytearray | memoryview, threads: int) -> None:
    """
    Fills `out` with finite words, divided by 1 + scale / 256 of their block if scales are
    given, and rounded once to `kept` mantissa bits, ties to even, at most to the largest
    finite word.
    """

def pack_plane(kind: int, words: bytes | bytearray | memoryview, low: int, width: int, out: bytearray | memoryview) -> None:
    """
    Fills `out` with `width` mantissa bits of each word, from bit `low` on: the first word's
    lowest in the first byte.
    """

def join_planes(kind: int, words: bytearray | memoryview, planes: Sequence[tuple[int, int, bytes | bytearray | memoryview]], fill: int, scales: bytes | bytearray | memoryview | None, block: int, threads: int) -> None:
    """
    Puts planes (lowest bit, width, bits) into words where these have zeros, sets the bits
    `fill` of words whose exponent field is not 0, and multiplies words by
    1 + scale / 256 of their block if scales are given, rounded once, ties to even.
    """

class PreludeModel:
    """
    What a prelude says, as plain numbers, for decoders on GPUs. A context is the first entry
    of its table, times 64, plus its shift. Bytes hold little endian numbers.
    """

    @staticmethod
    def of_floats(kind: int, prelude: bytes | bytearray | memoryview) -> PreludeModel:
        """
        The model of a prelude of neuzip_lossless. ValueError if no encoder writes it.
        """

    @staticmethod
    def of_deltas(kind: int, prelude: bytes | bytearray | memoryview, rows: int, columns: int, version: int) -> PreludeModel:
        """
        The model of a prelude of this version of fm_delta, for a frame of rows x
        columns words. ValueError if no encoder writes it.
        """

    @property
    def table_log(self) -> int: ...

    @property
    def entries(self) -> bytes:
        """
        Decoding tables of 2^table_log entries of 32 bits, one after the other.
        """

    @property
    def zero_bits(self) -> int:
        """Trailing zero bits that all words share, and that are not coded."""

    @property
    def n_low(self) -> int:
        """neuzip_lossless: mantissa bits that are not coded with the exponent."""

    @property
    def classes(self) -> bytes:
        """
        64 contexts of 32 bits; those after the last class repeat it. Empty for
        neuzip_lossless.
        """

    @property
    def last_class(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def row_scales(self) -> int | None:
        """The context of row scales; None if rows have none."""

    @property
    def column_scales(self) -> bytes:
        """16 bits for each column; empty if columns have no scales."""

    @property
    def decay_bits(self) -> int:
        """
        The mantissa bits that choose the step of a word in a weight-decay row.
        """

    @property
    def flags(self) -> int:
        """The context of row flags."""

    @property
    def decay_steps(self) -> bytes:
        """2^decay_bits words."""

    @property
    def floor(self) -> int:
        """The exponent field of the product's unit."""

    @property
    def is_product_rounded(self) -> bool: ...

    @property
    def left(self) -> list[tuple[int, int]]:
        """(context, trailing zero bits) of the left factor of each component."""

    @property
    def right(self) -> bytes:
        """
        The right factor: 16 bits for each column of the first component, then of the
        second, and so on.
        """

"""Native kernels of deltahub.codecs."""

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
    From now on encoders and decoders that are made use these kernels. ValueError where the
    processor cannot run them. All sets write and read the same bytes.
    """

def join_byte_groups(grouped: bytes | bytearray | memoryview, out: bytearray | memoryview) -> None:
    """
    Fills `out` with the bytes of `grouped`, where bytes 0, 4, 8... of it come first, then 1,
    5, 9..., and so on. The two do not overlap. ValueError unless they have the same size.
    """

def bytes_to_fill(size: int) -> bytes:
    """
    Bytes of any values, for an io.BytesIO that takes them over and writes what is read: to
    clear them would cost as much as to copy them.
    """

def estimate_floats(kind: int, source: bytes | bytearray | memoryview) -> tuple[int, int]:
    """
    (about how many bytes neuzip_lossless takes for these words, how many at least), counted as
    NeuzipEncoder does. ValueError where that one raises it.
    """

FAULT_GUARD: int = 1

FAULT_STREAM: int = 2

FAULT_OTHER_BYTES: int = 3

class BlockTable:
    """How each block of a frame is stored, and where."""

    def __init__(self, table: bytes | bytearray | memoryview, rows: int, columns: int, word_bytes: int, rows_per_block: int, parts: int, has_base: bool, stored_bytes: int) -> None:
        """
        Reads the rows of a block table. The frame has rows x columns words; its blocks have so
        many rows each, or are so many parts of one, and take so many stored bytes. ValueError
        where no encoder writes such a table for it.
        """

    def rows(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """
        (mode, stored bytes, checksum) of blocks [first, end). ValueError where there are none.
        """

    def stored_span(self, first: int, end: int) -> tuple[int, int]:
        """
        (begin, end) of blocks [first, end) among the stored bytes. ValueError where there are
        none.
        """

def decode_plain_run(blocks: BlockTable, first: int, end: int, payload: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[int, int]:
    """
    Blocks [first, end) of a frame in which none is coded, as FmDeltaDecoder.decode_run. base:
    empty for a frame without one.
    """

class FmDeltaEncoder:
    """The model of one frame, ready to encode its blocks."""

    def __init__(self, kind: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, rows: int, columns: int, effort: int, left: bytes | bytearray | memoryview, right: bytes | bytearray | memoryview, floor: int, is_rounded: bool, is_strided: bool = False) -> None:
        """
        Plans the model from the words of a frame. kind: see fm_delta.WORD_KINDS. effort: 1 to
        3. left, right: int16 factors, rows x rank and rank x columns, or empty; floor: the
        exponent of their unit; is_rounded: their product is rounded before it is added;
        is_strided: digits at the end that are zero in all words are left out.

        ValueError unless source and base are rows x columns words, at least one.
        """

    @property
    def prelude(self) -> bytes: ...

    @property
    def version(self) -> int:
        """The codec's, of this prelude."""

    @property
    def estimated_bytes(self) -> int:
        """About what prelude and coded blocks will take."""

    def encode(self, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, row: int, column: int, rows: int, columns: int) -> bytes:
        """
        The stream of one block: a rectangle of the frame, whose words are given.
        """

    def encode_run(self, rows_per_block: int, parts: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[list[int], list[int], list[int]]:
        """
        Fills `out` from its beginning with all blocks of the frame as they are stored, guards
        included, and gives their modes, stored lengths and checksums. A block has so many rows
        or is one of so many parts of a row. ValueError unless the sizes fit, and `out` has
        room for the source. The result is the same for any number of threads.
        """

class FmDeltaDecoder:
    """A prelude's model, ready to decode blocks."""

    def __init__(self, kind: int, prelude: bytes | bytearray | memoryview, rows: int, columns: int, version: int = 1) -> None:
        """
        ValueError where no encoder of this version of the codec writes such a prelude for a
        frame of rows x columns words.
        """

    def decode(self, stream: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, column: int, rows: int, columns: int) -> None:
        """
        Fills `out` with one block of rows x columns words, from a column of the frame on.
        ValueError where no encoder writes such a stream.
        """

    def decode_run(self, blocks: BlockTable, first: int, end: int, payload: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[int, int]:
        """
        Fills `out` with blocks [first, end), guards included. How many of them are intact
        before the first one with a fault, and which (FAULT_*, or 0); the rest of `out` is then
        worthless. ValueError unless the sizes fit.
        """

    @staticmethod
    def decode_once(kind: int, prelude: bytes | bytearray | memoryview, version: int, blocks: BlockTable, first: int, end: int, payload: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[int, int]:
        """
        decode_run by this prelude's model, which is not kept. ValueError as of both.
        """

class NeuzipEncoder:
    """The table of one frame."""

    def __init__(self, kind: int, source: bytes | bytearray | memoryview) -> None:
        """
        Counts the exponents of a frame, and what goes with them. ValueError for words that are
        no floats, and where they have more exponents than a table holds.
        """

    @property
    def prelude(self) -> bytes: ...

    @property
    def estimated_bytes(self) -> int: ...

    def encode(self, source: bytes | bytearray | memoryview) -> bytes:
        """The stream of one block."""

    def encode_run(self, rows: int, columns: int, rows_per_block: int, parts: int, source: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[list[int], list[int], list[int]]:
        """
        All blocks of a frame of rows x columns words, as FmDeltaEncoder.encode_run.
        """

class NeuzipDecoder:
    """A prelude's table, ready to decode blocks."""

    def __init__(self, kind: int, prelude: bytes | bytearray | memoryview) -> None:
        """ValueError where no encoder writes such a prelude."""

    def decode(self, stream: bytes | bytearray | memoryview, out: bytearray | memoryview) -> None:
        """
        Fills `out` with one block. ValueError where no encoder writes such a stream.
        """

    def decode_run(self, blocks: BlockTable, first: int, end: int, payload: bytes | bytearray | memoryview, out: bytearray | memoryview, threads: int) -> tuple[int, int]:
        """Blocks [first, end), as FmDeltaDecoder.decode_run."""

def estimate_deltas(kind: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, begins: list[int], n: int) -> int:
    """
    About how many bytes fm_delta takes for runs of n words, found by counting some of them.
    kind: see fm_delta.WORD_KINDS. begins: where the runs begin, in bytes. n: a multiple of 64.
    ValueError unless both hold these runs.
    """

def common_stride(kind: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview) -> int:
    """
    How many digits at the end are zero in all words of both, as far as fm_delta leaves them
    out. ValueError unless both are as many words.
    """

def encode_clear_delta(kind: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, rows: int, columns: int, rows_per_block: int, parts: int, header: bytes | bytearray | memoryview, most: int, effort: int, threads: int) -> bytes | None:
    """
    A whole frame of fm_delta, planned as FmDeltaEncoder does and cut as its encode_run does;
    effort: 1, or 2, with what fit_directions finds. None for words that are no floats, where it
    would have `most` bytes or more, and where a little of the words does not say clearly that
    they take more without the base; at effort 2 for words that fit_directions does not take or
    that have a common stride, too, and where it pays to look closer. header: the frame's, without
    its checksum, and with zeros for the lengths of prelude and body. The result is the same for
    any number of threads. ValueError unless the sizes fit.
    """

def greatest_magnitude(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]]) -> int:
    """
    The greatest magnitude of the words that are numbers, as a word without its sign; 0 where
    there is none. kind: see fm_delta.WORD_KINDS; one of those that are predicted, as in all
    that follows.
    """

@overload
def subtract(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], out: numpy.typing.NDArray[numpy.float32]) -> None:
    """
    Fills `out` with words less base, rounded to its floats; 0 where either is no number.
    ValueError unless all have the same shape, rows contiguous.
    """

@overload
def subtract(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], out: numpy.typing.NDArray[numpy.float64]) -> None:
    """The same in float64."""

def line_energies(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], by_row: numpy.typing.NDArray[numpy.float32], by_column: numpy.typing.NDArray[numpy.float32]) -> None:
    """
    Fills by_row (rows x 1) and by_column (1 x columns) with the sums of squares of words less
    base; of a row in which a word is no number, infinity. ValueError unless the shapes fit.
    """

@overload
def ask(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], products: numpy.typing.NDArray[numpy.float32], typical: int, octaves: int, margin: float | None, inertia: float, is_rounded: bool, weights: numpy.typing.NDArray[numpy.float32], pulls: numpy.typing.NDArray[numpy.float32]) -> None:
    """
    Fills `weights` of words, and `pulls`: how far their products should move, times the weight.
    products: what was added to the base, so far as it is known. typical: the exponent field of
    the typical ulp. octaves, margin, inertia: see low_rank_steps.Rule. is_rounded: see
    low_rank.LowRank. ValueError unless all have the same shape.
    """

@overload
def ask(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], products: numpy.typing.NDArray[numpy.float64], typical: int, octaves: int, margin: float | None, inertia: float, is_rounded: bool, weights: numpy.typing.NDArray[numpy.float32], pulls: numpy.typing.NDArray[numpy.float32]) -> None:
    """The same of float64 products."""

@overload
def half_step(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], own: numpy.typing.NDArray[numpy.float32], given: numpy.typing.NDArray[numpy.float32], typical: int, octaves: int, margin: float | None, inertia: float, is_rounded: bool, solutions: numpy.typing.NDArray[numpy.float64]) -> None:
    """
    Fills `solutions` with what `own` (a row for each row of words) should be moved by, so that
    own @ given (a column for each column of words) is nearer to what the words ask for: see
    `ask`. Words may have any strides. The squares of words that are no finer than most of
    their row are taken for those of the mean column, and a little is added to diagonals.
    ValueError where shapes do not fit each other.
    """

@overload
def half_step(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], own: numpy.typing.NDArray[numpy.float64], given: numpy.typing.NDArray[numpy.float64], typical: int, octaves: int, margin: float | None, inertia: float, is_rounded: bool, solutions: numpy.typing.NDArray[numpy.float64]) -> None:
    """The same of float64 products."""

def trial_bits(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]], left: numpy.typing.NDArray[numpy.int16], right: numpy.typing.NDArray[numpy.int16], floor: int, is_rounded: bool) -> float:
    """
    About how many bits words take after a prediction from the base by factors: left is
    rows x rank, right rank x columns; rank 0 predicts the base. floor, is_rounded: see
    low_rank.LowRank. ValueError where shapes do not fit each other.
    """

@overload
def make_integers(values: numpy.typing.NDArray[numpy.float32], scales: numpy.typing.NDArray[numpy.float32], shifts: numpy.typing.NDArray[numpy.int32], is_by_row: bool, out: numpy.typing.NDArray[numpy.int16]) -> None:
    """
    Fills `out` with values times scales, to nearest, ties to even, but within 32767 >> shift;
    then shifted back by as much. scales, shifts (0 to 14): of rows, or else of columns.
    ValueError where shapes do not fit each other.
    """

@overload
def make_integers(values: numpy.typing.NDArray[numpy.float64], scales: numpy.typing.NDArray[numpy.float64], shifts: numpy.typing.NDArray[numpy.int32], is_by_row: bool, out: numpy.typing.NDArray[numpy.int16]) -> None:
    """The same of float64."""

def count_exponents(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], counts: numpy.typing.NDArray[numpy.int64]) -> None:
    """
    Adds to the count of each exponent field how many of the words have it.
    """

def whiten(squares: numpy.typing.NDArray[numpy.float64], turn: numpy.typing.NDArray[numpy.float32]) -> None:
    """
    Fills `turn`, so that columns @ turn are about orthonormal whose products are `squares`,
    of which the upper half is read and changed; they must not all be zero.
    """

def fit_directions(kind: int, words: numpy.typing.NDArray[numpy.unsignedinteger[Any]], base: numpy.typing.NDArray[numpy.unsignedinteger[Any]]) -> tuple[bytes, bytes, int, bool, bool]:
    """
    A product of low rank that makes words of BF16 smaller, given the base: its left and right
    factor, rows x rank and rank x columns of int16, empty where none pays; its floor; whether it
    is rounded before it is added; and whether it is that of a merged adapter and so far from what
    its factors take that it pays to look closer. The same on every machine. ValueError unless
    both are C-contiguous, of the same shape, and have at most 65536 rows and columns.
    """

def factor_bits(values: Annotated[NDArray[numpy.int16], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> float:
    """About how many bits factors take, each column one component."""

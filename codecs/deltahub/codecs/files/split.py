"""Splits a file into tensors, chunks and literals, in the same way at client and hub.

Both must find the same tensors in a file, because the client asks the hub which of them it has.
The plan depends only on the file's bytes, the ending of its name and the limits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from deltahub.codecs.errors import InvalidInput, InvalidSafetensors
from deltahub.codecs.files.recipe import Literal, Recipe, RecipeKind, TensorRef
from deltahub.codecs.files.safetensors import (
    DEFAULT_LIMITS,
    LENGTH_BYTES,
    HeaderLimits,
    Piece,
    header_length,
    layout,
    parse_header,
)
from deltahub.codecs.frames.encode import TensorSpec, tensor_spec
from deltahub.codecs.protocol import Buffer

CHUNK_BYTES: Final = 16 << 20
INLINE_BYTES: Final = 1 << 10  # most bytes between tensors that are stored in the recipe
SAFETENSORS_SUFFIX: Final = ".safetensors"

ReadAt = Callable[[int, int], Buffer]
"""read_at(offset, length): exactly `length` bytes of the file."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes [start, end) of a file: a literal, or a tensor with the file's dtype and shape.

    A chunk of bytes outside of tensors counts as a tensor of dtype U8 without a name.
    """

    start: int
    end: int
    is_literal: bool
    dtype: str
    shape: tuple[int, ...]
    name: str | None

    @property
    def size(self) -> int:
        return self.end - self.start

    def spec(self, tensor: bytes) -> TensorSpec:
        """The piece as the frame layer encodes it. tensor: its id."""
        return tensor_spec(tensor, self.dtype, self.shape)


@dataclass(frozen=True)
class FilePlan:
    """The pieces of a file, back to back. note: why a .safetensors file is stored as opaque."""

    kind: RecipeKind
    note: str | None
    size: int
    pieces: tuple[FilePiece, ...]

    def tensor_pieces(self) -> list[FilePiece]:
        return [piece for piece in self.pieces if not piece.is_literal]


def plan_file(
    read_at: ReadAt, size: int, name: str, limits: HeaderLimits = DEFAULT_LIMITS
) -> FilePlan:
    """The plan of a file of `size` bytes. Reads only the header of a safetensors file.

    A .safetensors file that is not well-formed is no error: it is stored as opaque chunks, and
    `note` says why.
    """
    if not name.endswith(SAFETENSORS_SUFFIX):
        return FilePlan("opaque", None, size, tuple(_chunks(0, size)))
    try:
        first8 = read_at(0, min(size, LENGTH_BYTES))
        head = read_at(0, header_length(first8, size, limits))
        pieces = layout(parse_header(head, size, limits), size)
    except InvalidSafetensors as exc:
        return FilePlan("opaque", str(exc), size, tuple(_chunks(0, size)))
    return FilePlan("safetensors", None, size, tuple(_file_pieces(pieces)))


def make_recipe(plan: FilePlan, sha256: bytes, ids: Sequence[bytes], read_at: ReadAt) -> Recipe:
    """The recipe of a planned file. ids: of its tensor pieces, in order. Reads the literals."""
    n_tensors = len(plan.tensor_pieces())
    if len(ids) != n_tensors:
        raise InvalidInput(f"{len(ids)} ids for {n_tensors} tensors")
    remaining = iter(ids)
    segments: list[Literal | TensorRef] = [
        Literal(bytes(read_at(piece.start, piece.size)))
        if piece.is_literal
        else TensorRef(next(remaining), piece.size, piece.dtype, piece.shape, piece.name)
        for piece in plan.pieces
    ]
    return Recipe(plan.size, sha256, plan.kind, tuple(segments))


def _file_pieces(pieces: list[Piece]) -> list[FilePiece]:
    result: list[FilePiece] = []
    for piece in pieces:
        info = piece.info
        if info is not None:
            result.append(
                FilePiece(piece.start, piece.end, False, info.dtype, info.shape, info.name)
            )
        elif piece.end - piece.start <= INLINE_BYTES:
            result.append(_bytes_piece(piece.start, piece.end, is_literal=True))
        else:
            result += _chunks(piece.start, piece.end)
    return result


def _chunks(start: int, end: int) -> list[FilePiece]:
    if end - start <= INLINE_BYTES:
        return [_bytes_piece(start, end, is_literal=True)] if start < end else []
    return [
        _bytes_piece(begin, min(begin + CHUNK_BYTES, end), is_literal=False)
        for begin in range(start, end, CHUNK_BYTES)
    ]


def _bytes_piece(start: int, end: int, is_literal: bool) -> FilePiece:
    return FilePiece(start, end, is_literal, "U8", (end - start,), None)

"""A pair of safetensors files as the tensors that codecs are given."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from benchmarks.codecs.model_file import ModelFile
from benchmarks.rivals.rival import Words
from deltahub.codecs import FilePiece

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of the fine-tune, and the base's words for it.

    base: as many words as the tensor has; beyond n_base they are zeros that no file holds. n_base
    is 0 where the base has no tensor of this name, dtype and row length.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    words: Words
    base: Words
    n_base: int

    @property
    def is_unchanged(self) -> bool:
        return self.n_base == len(self.words) and np.array_equal(self.words, self.base)

    def copy(self) -> "Tensor":
        words, base = self.words.copy(), self.base.copy()
        return Tensor(self.name, self.dtype, self.shape, words, base, self.n_base)


@dataclass(frozen=True)
class PairOfFiles:
    """header_bytes: of the fine-tune's file, before its tensors."""

    fine_tune: ModelFile
    tensors: tuple[Tensor, ...]
    header_bytes: int

    @classmethod
    def load(cls, base: Path, fine_tune: Path) -> "PairOfFiles":
        theirs, ours = ModelFile.load(base), ModelFile.load(fine_tune)
        named = {piece.name: piece for piece in theirs.pieces if piece.name is not None}
        tensors = tuple(
            _tensor(ours, piece, theirs, named.get(piece.name))
            for piece in ours.pieces
            if piece.name is not None
        )
        return cls(ours, tensors, ours.data_start)

    @property
    def file_bytes(self) -> int:
        return len(self.fine_tune.data)

    def buffers(self, size_bytes: int) -> list[Tensor]:
        """Copies of the changed float tensors, again and again until there are `size_bytes`.

        Distinct memory, so that nothing is in a cache because it was just there.
        """
        changed = [t for t in self.tensors if t.dtype in FLOATS and not t.is_unchanged]
        found: list[Tensor] = []
        total = 0
        while changed and total < size_bytes:
            for tensor in changed:
                found.append(tensor.copy())
                total += tensor.words.nbytes
        return found


def _tensor(ours: ModelFile, piece: FilePiece, theirs: ModelFile, near: FilePiece | None) -> Tensor:
    assert piece.name is not None
    dtype = _WORDS[piece.spec(bytes(32)).dtype.itemsize]
    words = np.frombuffer(ours.bytes_of(piece), dtype)
    base = np.zeros_like(words)
    n_base = 0
    if near is not None and near.dtype == piece.dtype and _rows_fit(piece.shape, near.shape):
        known = np.frombuffer(theirs.bytes_of(near), dtype)[: len(words)]
        n_base = len(known)
        base[:n_base] = known
    return Tensor(piece.name, piece.dtype, tuple(piece.shape), words, base, n_base)


def _rows_fit(shape: Sequence[int], near: Sequence[int]) -> bool:
    """Equal shapes, or matrices that differ in their number of rows."""
    if tuple(shape) == tuple(near):
        return True
    return len(shape) == len(near) >= 2 and prod(shape[1:]) == prod(near[1:])

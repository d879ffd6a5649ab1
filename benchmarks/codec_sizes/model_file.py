"""A safetensors file in memory, cut the way the hub cuts it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deltahub.codecs import FilePiece, FilePlan, plan_file, tensor_id


@dataclass(frozen=True)
class ModelFile:
    """All bytes of a file and its pieces, back to back."""

    data: bytes
    plan: FilePlan
    _ids: dict[FilePiece, bytes] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, path: Path) -> "ModelFile":
        return cls.from_bytes(path.read_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> "ModelFile":
        """A file that is no safetensors is opaque pieces, without names."""

        def read_at(offset: int, length: int) -> bytes:
            return data[offset : offset + length]

        return cls(data, plan_file(read_at, len(data), "model.safetensors"))

    @property
    def pieces(self) -> tuple[FilePiece, ...]:
        return self.plan.pieces

    @property
    def data_start(self) -> int:
        """Where the tensors begin: the header lies before."""
        return min(piece.start for piece in self.pieces if piece.name is not None)

    @property
    def itemsize(self) -> int:
        """Bytes a word, of the file's first tensor: the benchmark's files have one dtype each."""
        return next(
            piece.spec(bytes(32)).dtype.itemsize for piece in self.pieces if piece.name is not None
        )

    def bytes_of(self, piece: FilePiece) -> memoryview:
        return memoryview(self.data)[piece.start : piece.end]

    def id_of(self, piece: FilePiece) -> bytes:
        """BLAKE3 of the piece, hashed once: hub and client know the ids of what they hold."""
        if piece not in self._ids:
            self._ids[piece] = tensor_id(self.bytes_of(piece))
        return self._ids[piece]

    def tensor(self, name: str | None, dtype: str, shape: tuple[int, ...]) -> FilePiece | None:
        """The piece with this name, dtype and shape, if the file has it."""
        for piece in self.pieces:
            if name is not None and (piece.name, piece.dtype, piece.shape) == (name, dtype, shape):
                return piece
        return None


def pairs(fine_tune: ModelFile, base: ModelFile) -> Iterator[tuple[FilePiece, FilePiece | None]]:
    """Each piece of the fine-tune with the base's tensor of that name, dtype and shape."""
    for piece in fine_tune.pieces:
        yield piece, base.tensor(piece.name, piece.dtype, piece.shape)

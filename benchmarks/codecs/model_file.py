"""A safetensors file in memory, cut the way the hub cuts it."""

from dataclasses import dataclass
from pathlib import Path

from deltahub.codecs import FilePiece, FilePlan, plan_file


@dataclass(frozen=True)
class ModelFile:
    """All bytes of a file and its pieces, back to back."""

    data: bytes
    plan: FilePlan

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

    def bytes_of(self, piece: FilePiece) -> memoryview:
        return memoryview(self.data)[piece.start : piece.end]

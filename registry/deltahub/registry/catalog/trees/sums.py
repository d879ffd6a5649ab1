"""What a tree says of all files below a node: their number, bytes, formats and newest change."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from deltahub.codecs.files.paths import folded

# Tags of file formats, and how the names of their files end. A mark is the position here: append.
FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "safetensors": (".safetensors",),
    "gguf": (".gguf",),
    # Not every .bin: trainers write training_args.bin beside weights of another format.
    "pytorch": ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"),
    "onnx": (".onnx",),
    "tf": ("tf_model.h5", "tf_model.h5.index.json"),
    "jax": ("flax_model.msgpack", "flax_model.msgpack.index.json"),
    "tflite": (".tflite",),
}
# A safetensors file in no folder, and a file named HEAD, which git looks for.
ROOT_WEIGHTS: Final = 1 << 32
HEAD: Final = 1 << 33
_ID_BITS: Final = 160


class Change(NamedTuple):
    """The commit that put a file at its path. number: Revision.number. commit: its id, 20 bytes."""

    number: int
    commit: bytes


NO_CHANGE: Final = Change(0, bytes(20))


@dataclass(frozen=True, slots=True)
class TreeFile:
    """The file and mode at a path of a tree. state: of the file, when the tree was read."""

    file_id: int
    mode: str  # regular | lfs
    sha256: str
    size: int
    git_blob_id: str | None
    state: str = field(compare=False)
    changed: Change = field(default=NO_CHANGE, compare=False)

    @property
    def is_waiting(self) -> bool:
        """Whether an ingest has to store the file."""
        return self.state == "landed"

    @property
    def is_lost(self) -> bool:
        return self.state == "lost"

    @property
    def etag(self) -> str:
        """The git blob id of a regular file, the SHA-256 of an LFS file; never changes."""
        return etag_of(self.mode, self.sha256, self.git_blob_id)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over files. id: of the hashes of their paths and ETags, so equal trees have equal ids.

    marks: bits of what there is at least once, see marks_of. changed: the newest change.
    """

    n_files: int = 0
    n_bytes: int = 0
    id: int = 0
    marks: int = 0
    changed: Change = NO_CHANGE

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.n_files + other.n_files,
            self.n_bytes + other.n_bytes,
            (self.id + other.id) % (1 << _ID_BITS),
            self.marks | other.marks,
            max(self.changed, other.changed, key=_number),
        )

    @property
    def hex_id(self) -> str:
        """40 hex digits that all paths and ETags determine."""
        return f"{self.id:040x}"


def sums_of(files: Iterable[tuple[str, TreeFile]]) -> Sums:
    """The sums over the files at these paths."""
    n_files = n_bytes = id_sum = marks = 0
    changed = NO_CHANGE
    for path, file in files:
        n_files += 1
        n_bytes += file.size
        id_sum += id_of(path, file)
        marks |= marks_of(path)
        if file.changed.number > changed.number:
            changed = file.changed
    return Sums(n_files, n_bytes, id_sum % (1 << _ID_BITS), marks, changed)


def id_of(path: str, file: TreeFile) -> int:
    """What one file adds to the id of its tree."""
    digest = hashlib.sha1(f"{path}\0{file.etag}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest, "big")


def etag_of(mode: str, sha256: str, git_blob_id: str | None) -> str:
    """The ETag that TreeFile.etag gives, from the columns of an entry and its file."""
    if mode == "lfs":
        return sha256
    assert git_blob_id is not None, "verified together with the SHA-256"
    return git_blob_id


def marks_of(path: str) -> int:
    """The bits of a path: of the formats that its name ends in, ROOT_WEIGHTS and HEAD."""
    marks = 0
    for bit, endings in enumerate(FORMATS.values()):
        if path.endswith(endings):
            marks |= 1 << bit
    if "/" not in path and path.endswith(FORMATS["safetensors"]):
        marks |= ROOT_WEIGHTS
    if folded(path.rpartition("/")[2]) == "head":
        marks |= HEAD
    return marks


def formats_in(marks: int) -> tuple[str, ...]:
    """The tags of the formats that the marks name."""
    return tuple(name for bit, name in enumerate(FORMATS) if marks >> bit & 1)


def _number(change: Change) -> int:
    return change.number

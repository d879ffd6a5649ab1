"""What the harness asks of every contender."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from benchmarks.codec_sizes.model_file import ModelFile


@dataclass(frozen=True)
class Encoded:
    """size: every byte that would have to be stored, headers and tables included.

    state: whatever decode() needs, counted in size.
    """

    size: int
    state: Any


class Contender(Protocol):
    """One codec with its settings. encode and decode are timed; decode returns the file's bytes."""

    name: ClassVar[str]
    about: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]  # whose versions a result must name

    def encode(self, fine_tune: ModelFile, base: ModelFile) -> Encoded: ...

    def decode(self, encoded: Encoded, base: ModelFile) -> bytes | bytearray | memoryview: ...

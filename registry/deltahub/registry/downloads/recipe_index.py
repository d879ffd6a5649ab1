"""A recipe indexed for reading ranges: end and tensor of each segment, 40 bytes a segment."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from deltahub.codecs.files.recipe import Literal, Recipe

HASH = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [first, end) of one segment; `literal` is None for a tensor."""

    tensor: bytes
    literal: bytes | None
    first: int
    end: int


class RecipeIndex:
    """Segments by end offset, so that one bisect finds a range in a file of 10,000 tensors."""

    def __init__(self, recipe: Recipe) -> None:
        self.size = recipe.size
        self._ends = array("Q")
        self._hashes = bytearray()
        self._literals: dict[int, bytes] = {}
        end = 0
        for number, segment in enumerate(recipe.segments):
            if isinstance(segment, Literal):
                self._literals[number] = bytes(segment.data)
                self._hashes += bytes(HASH)
                end += len(segment.data)
            else:
                self._hashes += segment.tensor
                end += segment.size
            self._ends.append(end)

    @property
    def memory_bytes(self) -> int:
        literals = sum(len(data) + 100 for data in self._literals.values())
        return 200 + len(self._ends) * (8 + HASH) + literals

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """The parts of segments that make up bytes [start, end) of the file, in order."""
        number = bisect_right(self._ends, start)
        while start < end:
            segment_start = self._ends[number - 1] if number else 0
            stop = min(end, self._ends[number])
            if stop > start:
                yield Piece(
                    bytes(self._hashes[number * HASH : (number + 1) * HASH]),
                    self._literals.get(number),
                    start - segment_start,
                    stop - segment_start,
                )
                start = stop
            number += 1

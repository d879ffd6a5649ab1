"""An export's file: a safetensors file, in which a compressed weight has a tensor for each part.

Format: codecs/spec/neuzip.md. A reader maps the file into memory and decodes weights from there.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from deltahub.codecs.errors import CodecError, CorruptFrame, InvalidInput, InvalidSafetensors
from deltahub.codecs.exports.coding import (
    AnyCoding,
    decode_elements,
    open_part,
)
from deltahub.codecs.exports.metadata import export_metadata, parse_metadata, shown
from deltahub.codecs.exports.parts import Part
from deltahub.codecs.files.safetensors import (
    SafetensorsHeader,
    TensorInfo,
    header_length,
    parse_header,
)
from deltahub.codecs.frames.header import parse_header as parse_frame_header
from deltahub.codecs.protocol import Buffer

__all__ = [
    "FILE_NAME",
    "CompressedWeight",
    "ExportFile",
    "export_metadata",
    "map_export",
    "named",
    "part_name",
    "weight_of_part",
]

FILE_NAME: Final = "model.neuzip.safetensors"
# Between a weight's name and its part's.
_SEPARATOR: Final = ".nz."


def part_name(weight: str, part: str) -> str:
    """The name of a part's tensor in the file: bytes, of one dimension."""
    return f"{weight}{_SEPARATOR}{part}"


def weight_of_part(name: str) -> str | None:
    """The weight that a tensor with this name is a part of, if the file has such a weight."""
    weight, separator, _ = name.rpartition(_SEPARATOR)
    return weight if separator else None


@dataclass(frozen=True)
class CompressedWeight:
    """A weight as its frames. slices: the opened parts of each slice of elements."""

    name: str
    shape: tuple[int, ...]
    coding: AnyCoding
    slices: tuple[Mapping[str, Part], ...]

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def plain_bytes(self) -> int:
        return self.count * self.coding.dtype.itemsize

    def size_bytes(self, bits: int | None = None) -> int:
        """The bytes that a reader of `bits` mantissa bits keeps; None for all."""
        parts = self.coding.needed(self.coding.bits if bits is None else bits)
        return sum(each[part].size_bytes for each in self.slices for part in parts)

    def decode_into(self, out: memoryview, bits: int | None = None, threads: int = 1) -> None:
        """Fill `out` with all elements. CorruptFrame names the weight."""
        self.decode_range(0, self.count, out, bits, threads)

    def decode_range(
        self, first: int, count: int, out: memoryview, bits: int | None = None, threads: int = 1
    ) -> None:
        """Fill `out` with `count` elements from `first` on. The same errors; InvalidInput if the
        weight has no such elements or level, or `out` another size.
        """
        target, size = out.cast("B"), self.coding.dtype.itemsize
        try:
            if min(first, count) < 0 or first + count > self.count or len(target) != count * size:
                raise InvalidInput(
                    f"{len(target)} bytes for {count} elements from {first} on, of {self.count}"
                )
            step = self.coding.slice_elements
            for at, begin, end in _slices_of(first, count, step):
                low = (at * step + begin - first) * size
                room = target[low : low + (end - begin) * size]
                decode_elements(self.coding, self.slices[at], (begin, end), room, bits, threads)
        except CodecError as exc:
            raise named(self.name, exc) from exc


class ExportFile:
    """An export in memory, or mapped into it: its compressed weights, and its plain tensors.

    InvalidSafetensors, CorruptFrame and UnsupportedVersion name what is wrong with the file.
    """

    def __init__(self, data: Buffer, title: str) -> None:
        self._data = memoryview(data).cast("B")
        self.weights: dict[str, CompressedWeight] = {}
        taken: set[str] = set()
        try:
            size = len(self._data)
            header = parse_header(self._data[: header_length(self._data[:8], size)], size)
            tensors = {info.name: info for info in header.tensors}
            for name, (shape, how) in parse_metadata(header.metadata).items():
                named = {part: part_name(name, part) for part in how.parts}
                taken |= {*named.values()}
                self.weights[name] = self._open(name, shape, how, _parts_of(tensors, named))
            self.plain = {name: info for name, info in tensors.items() if name not in taken}
            _check_names(header, self.weights, taken)
        except CodecError as exc:
            raise type(exc)(f"{title}: {exc}") from exc

    def bytes_of(self, info: TensorInfo) -> memoryview:
        """The bytes of a tensor as the file has them."""
        return self._data[info.start : info.end]

    def _open(
        self, name: str, shape: tuple[int, ...], how: AnyCoding, tensors: Mapping[str, TensorInfo]
    ) -> CompressedWeight:
        count = prod(shape)
        n_slices = -(-count // how.slice_elements)
        try:
            frames = {
                part: _frames(self.bytes_of(info), n_slices) for part, info in tensors.items()
            }
            slices = tuple(
                {part: open_part(how, part, found[at], end) for part, found in frames.items()}
                for at, _, end in _slices_of(0, count, how.slice_elements)
            )
        except CodecError as exc:
            raise named(name, exc) from exc
        return CompressedWeight(name, shape, how, slices)


def map_export(path: Path | str) -> ExportFile:
    """An export mapped into memory, which the system reads as it is needed: a file, or the folder
    that has it. OSError if it cannot be opened, and the errors of ExportFile.
    """
    path = Path(path)
    if path.is_dir():
        path /= FILE_NAME
    with path.open("rb") as file:
        if not file.seek(0, 2):  # which cannot be mapped
            raise InvalidSafetensors(f"{path.name} is empty")
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return ExportFile(mapped, path.name)


def named(weight: str, exc: CodecError) -> CodecError:
    """The same error, with the weight's name."""
    way_out = "; take the export from its hub again" if isinstance(exc, CorruptFrame) else ""
    return type(exc)(f"{shown(weight)}: {exc}{way_out}")


def _slices_of(first: int, count: int, step: int) -> Iterator[tuple[int, int, int]]:
    """(slice, begin, end within it) of elements [first, first + count); slices have `step`."""
    end = first + count
    while first < end:
        at, begin = divmod(first, step)
        stop = min(step, begin + end - first)
        yield at, begin, stop
        first += stop - begin


def _frames(data: memoryview, n_frames: int) -> list[memoryview]:
    """The frames of a part, one after another. CorruptFrame unless there are exactly so many."""
    frames: list[memoryview] = []
    at = 0
    while at < len(data) and len(frames) < n_frames:
        length = parse_frame_header(data[at:]).frame_length
        frames.append(data[at : at + length])
        at += length
    if len(frames) != n_frames or at != len(data):
        raise CorruptFrame(f"a part of {len(data)} bytes is not exactly {n_frames} frames")
    return frames


def _parts_of(tensors: Mapping[str, TensorInfo], named: Mapping[str, str]) -> dict[str, TensorInfo]:
    """part -> its tensor."""
    found: dict[str, TensorInfo] = {}
    for part, name in named.items():
        info = tensors.get(name)
        if info is None:
            raise InvalidSafetensors(f"it has no tensor {shown(name)}")
        if info.dtype != "U8" or len(info.shape) != 1:
            raise InvalidSafetensors(f"{shown(name)} is not a row of bytes (U8)")
        found[part] = info
    return found


def _check_names(
    header: SafetensorsHeader, weights: Mapping[str, CompressedWeight], taken: set[str]
) -> None:
    """InvalidSafetensors if a plain tensor has a weight's name, or is a part without a reader."""
    for info in header.tensors:
        is_left_over = info.name not in taken and weight_of_part(info.name) in weights
        if info.name in weights or is_left_over:
            raise InvalidSafetensors(
                f"the tensor {shown(info.name)} contradicts a compressed weight of that name"
            )

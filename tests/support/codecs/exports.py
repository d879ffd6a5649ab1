"""Exports of small weights: their parts, their files, and files with a stranger's metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from deltahub.codecs import DType
from deltahub.codecs.exports.coding import (
    SLICE_ELEMENTS,
    Coding,
    decode_slice,
    encode_slice,
    open_part,
)
from deltahub.codecs.exports.file import ExportFile, export_metadata, part_name
from deltahub.codecs.exports.parts import Part
from deltahub.codecs.files.new_header import new_header
from support.codecs.deltas import LAST_FINITE

ROUNDED = [DType.F32, DType.F16, DType.BF16]
# The largest finite magnitude of each dtype that is rounded.
LARGEST = {DType.F32: 0x7F7FFFFF, DType.F16: 0x7BFF, DType.BF16: LAST_FINITE[DType.BF16]}


@dataclass(frozen=True)
class Weight:
    """A weight before its export: `words` are its elements."""

    coding: Coding
    words: bytes
    shape: tuple[int, ...]


def weight(how: Coding, words: bytes) -> Weight:
    return Weight(how, words, (len(words) // how.dtype.itemsize,))


def frames_of(how: Coding, words: bytes) -> tuple[dict[str, bytes], bytes]:
    """(part -> its bytes, the elements as a reader of all bits gets them)."""
    parts: dict[str, bytes] = {part: b"" for part in how.parts}
    kept = b""
    step = SLICE_ELEMENTS * how.dtype.itemsize
    for at in range(0, len(words), step):
        frames, elements = encode_slice(how, memoryview(words)[at : at + step])
        assert tuple(frames) == how.parts
        for part, frame in frames.items():
            parts[part] += frame
        kept += elements
    return parts, kept


def opened(how: Coding, frames: Mapping[str, bytes], count: int) -> dict[str, Part]:
    return {part: open_part(how, part, frame, count) for part, frame in frames.items()}


def coded(how: Coding, words: bytes, bits: int | None = None, threads: int = 1) -> bytes:
    """The elements of one slice, encoded and decoded again."""
    frames, kept = encode_slice(how, memoryview(words), threads)
    out = bytearray(len(words))
    parts = opened(how, frames, len(words) // how.dtype.itemsize)
    needed = how.needed(how.bits if bits is None else bits)
    decode_slice(how, {part: parts[part] for part in needed}, memoryview(out), bits, threads)
    if bits is None:
        assert bytes(kept) == out
    return bytes(out)


def export_of(
    weights: Mapping[str, Weight],
    plain: Mapping[str, tuple[str, tuple[int, ...], bytes]] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The file of an export. plain: name -> (dtype, shape, bytes). metadata: instead of its own."""
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for name, each in weights.items():
        for part, data in frames_of(each.coding, each.words)[0].items():
            tensors[part_name(name, part)] = ("U8", (len(data),), data)
    tensors |= plain or {}
    if metadata is None:
        metadata = export_metadata({name: (w.shape, w.coding) for name, w in weights.items()})
    head = new_header(
        [(name, dtype, shape) for name, (dtype, shape, _) in tensors.items()], metadata
    )
    return head + b"".join(data for _, _, data in tensors.values())


def told(document: object) -> dict[str, str]:
    """Metadata that says this of the weights."""
    return {"neuzip": document if isinstance(document, str) else json.dumps(document)}


def decoded(file: ExportFile, name: str, bits: int | None = None) -> bytes:
    found = file.weights[name]
    out = bytearray(found.plain_bytes)
    found.decode_into(memoryview(out), bits)
    assert prod(found.shape) * found.coding.dtype.itemsize == len(out)
    return bytes(out)


def finite(dtype: DType) -> bytes:
    """Every finite word of a dtype of 16 bits."""
    words = np.arange(1 << 16, dtype="<u2")
    return words[(words & 0x7FFF) <= LARGEST[dtype]].tobytes()

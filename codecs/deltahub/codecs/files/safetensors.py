"""Reads the header of a safetensors file strictly, and splits the file by it.

A hub reads headers from anybody. So a header that breaks the format is refused with a message,
before memory is allocated for it. No code here reads tensors.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, cast

from deltahub.codecs.dtypes import HEADER_BITS
from deltahub.codecs.errors import InvalidSafetensors
from deltahub.codecs.files.json_bounds import json_fault
from deltahub.codecs.protocol import Buffer

LENGTH_BYTES: Final = 8  # little endian, before the JSON
MAX_DIMENSIONS: Final = 64
_MAX_METADATA: Final = 100_000
_METADATA: Final = "__metadata__"
_KEYS: Final = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True)
class HeaderLimits:
    """Limits of a header. A file with a larger header is stored as an opaque file."""

    max_header_bytes: int = 100_000_000
    max_tensors: int = 100_000


DEFAULT_LIMITS: Final = HeaderLimits()


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. Its bytes are [start, end) of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """header_length: 8 + bytes of the JSON. tensors: by offset, including empty ones."""

    header_length: int
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, end) of a file: one tensor, or bytes outside of tensors."""

    kind: Literal["literal", "tensor"]
    start: int
    end: int
    info: TensorInfo | None


def header_length(first8: Buffer, file_size: int, limits: HeaderLimits = DEFAULT_LIMITS) -> int:
    """The number of bytes that parse_header needs, from a file's first 8 bytes."""
    if file_size < LENGTH_BYTES or len(first8) < LENGTH_BYTES:
        raise InvalidSafetensors(f"a file of {file_size} bytes has no safetensors header")
    length = int.from_bytes(memoryview(first8)[:LENGTH_BYTES], "little")
    if length > limits.max_header_bytes:
        raise InvalidSafetensors(
            f"the header claims {length} bytes; at most {limits.max_header_bytes} are allowed"
        )
    if LENGTH_BYTES + length > file_size:
        raise InvalidSafetensors(
            f"the header claims {length} bytes, but the file ends after {file_size}"
        )
    return LENGTH_BYTES + length


def parse_header(
    head: Buffer, file_size: int, limits: HeaderLimits = DEFAULT_LIMITS
) -> SafetensorsHeader:
    """The parsed header of a file. InvalidSafetensors names the fault.

    head: the file's first header_length() bytes or more. Gaps between tensors and bytes after the
    last are allowed; overlapping tensors are not.
    """
    view = memoryview(head).cast("B")
    length = header_length(view, file_size, limits)
    if len(view) < length:
        raise InvalidSafetensors(f"{len(view)} bytes given of a header of {length}")
    entries = _parse_json(view[LENGTH_BYTES:length], limits)
    metadata = _checked_metadata(entries.pop(_METADATA, {}))
    tensors = [_checked_tensor(name, entry, length) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end, tensor.name))
    _check_places(tensors, file_size)
    return SafetensorsHeader(length, tuple(tensors), metadata)


def layout(header: SafetensorsHeader, file_size: int) -> list[Piece]:
    """The pieces of the whole file, back to back.

    The header, gaps and trailing bytes are literals. Empty tensors have no piece.
    """
    pieces: list[Piece] = []
    done = 0
    for tensor in header.tensors:
        if tensor.start == tensor.end:
            continue
        if tensor.start > done:
            pieces.append(Piece("literal", done, tensor.start, None))
        pieces.append(Piece("tensor", tensor.start, tensor.end, tensor))
        done = tensor.end
    if done < file_size:
        pieces.append(Piece("literal", done, file_size, None))
    return pieces


def _parse_json(view: memoryview, limits: HeaderLimits) -> dict[str, object]:
    text = bytes(view)
    if not text.startswith(b"{"):
        raise InvalidSafetensors("the header's JSON does not begin with '{'")
    # With one letter beyond ASCII, Python may store each letter of a string in four bytes.
    if 4 * len(text) > limits.max_header_bytes and (not text.isascii() or b"\\u" in text):
        raise InvalidSafetensors(
            f"a header with letters beyond ASCII has at most {limits.max_header_bytes // 4} bytes"
        )
    fault = json_fault(
        text,
        max_depth=3,
        # Each tensor is an object with two arrays; the header and its metadata are 2 objects.
        max_containers=3 * limits.max_tensors + 2,
        max_values=16 * limits.max_tensors + 2 * _MAX_METADATA,
    )
    if fault is not None:
        raise InvalidSafetensors(f"the header's JSON is refused: {fault}")
    try:
        letters = text.decode("utf-8")
        del text  # up to 100 MB, and json.loads takes more
        value = json.loads(letters, object_pairs_hook=_unique)
    except UnicodeDecodeError as exc:
        raise InvalidSafetensors("the header is not UTF-8") from exc
    except (ValueError, RecursionError) as exc:
        raise InvalidSafetensors(f"the header is not JSON: {exc}") from exc
    # A JSON text that begins with { is an object.
    return cast("dict[str, object]", value)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InvalidSafetensors(f"the header has {twice!a} twice")
    return entries


def _checked_metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidSafetensors(f"{_METADATA} is not an object")
    for key, text in value.items():
        if not isinstance(text, str):
            raise InvalidSafetensors(f"{_METADATA} has a value that is not text at {key!a}")
        _check_text(key)
        _check_text(text)
    return value


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:  # a lone \ud800: JSON allows it, file systems and APIs do not
        raise InvalidSafetensors(f"{text!a} has half a surrogate pair") from exc


def _checked_tensor(name: str, entry: object, data_begin: int) -> TensorInfo:
    _check_text(name)
    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        raise InvalidSafetensors(f"{name!a} has not exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in HEADER_BITS:
        raise InvalidSafetensors(f"{name!a} has an unknown dtype, {dtype!a:.40}")
    if not _is_naturals(shape) or len(shape) > MAX_DIMENSIONS:
        raise InvalidSafetensors(
            f"{name!a} has a shape that is not up to {MAX_DIMENSIONS} whole numbers"
        )
    if not _is_naturals(offsets) or len(offsets) != 2:
        raise InvalidSafetensors(f"{name!a} has data_offsets that are not two whole numbers")
    begin, end = offsets
    bits = HEADER_BITS[dtype]
    for size in shape:
        bits *= size
    if bits != 8 * (end - begin):
        raise InvalidSafetensors(
            f"{name!a} of {dtype} {shape!a:.200} takes {bits / 8 if bits < 1 << 60 else 'far more'}"
            f" bytes, its data_offsets hold {end - begin}"
        )
    return TensorInfo(name, dtype, tuple(shape), data_begin + begin, data_begin + end)


def _is_naturals(value: object) -> bool:
    # type() and not isinstance(), because bool is a subclass of int.
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 1 << 63 for item in value
    )


def _check_places(tensors: list[TensorInfo], file_size: int) -> None:
    last: TensorInfo | None = None
    for tensor in tensors:
        if tensor.end > file_size:
            raise InvalidSafetensors(
                f"{tensor.name!a} ends at byte {tensor.end}, the file at {file_size}"
            )
        if tensor.start == tensor.end:
            continue
        if last is not None and tensor.start < last.end:
            raise InvalidSafetensors(f"{last.name!a} and {tensor.name!a} overlap")
        last = tensor

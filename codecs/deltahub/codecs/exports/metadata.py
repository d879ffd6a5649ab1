"""What an export's file says of its compressed weights, under `__metadata__`.

Format: codecs/spec/neuzip.md.
"""

import json
from collections.abc import Mapping
from math import prod
from typing import Any, Final

from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import InvalidInput, InvalidSafetensors, UnsupportedVersion
from deltahub.codecs.exports.coding import AnyCoding, Coding
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.codecs.files.json_bounds import json_fault
from deltahub.codecs.files.safetensors import DEFAULT_LIMITS, MAX_DIMENSIONS
from deltahub.codecs.frames.base_plan import MAX_TENSOR_BYTES
from deltahub.codecs.frames.encode import shape_to_rows

VERSION: Final = 1
_KEY: Final = "neuzip"
_FIELDS: Final = {"dtype", "shape", "bits", "levels", "block"}
_INTEGER_FIELDS: Final = {"dtype", "shape", "form"}
_INTEGERS: Final = "integers"
# More than any dtype has mantissa bits.
_MAX_LEVELS: Final = 64

# The shape of a weight, and how it is coded.
Told = tuple[tuple[int, ...], AnyCoding]


def export_metadata(weights: Mapping[str, Told]) -> dict[str, str]:
    """The `__metadata__` of a file with these compressed weights: name -> (shape, coding)."""
    told = {name: _fields(shape, how) for name, (shape, how) in weights.items()}
    text = json.dumps({"version": VERSION, "weights": told}, separators=(",", ":"))
    return {"format": "pt", _KEY: text}


def _fields(shape: tuple[int, ...], how: AnyCoding) -> dict[str, object]:
    fields: dict[str, object] = {"dtype": how.dtype.name, "shape": list(shape)}
    if isinstance(how, IntegerCoding):
        return fields | {"form": _INTEGERS}
    return fields | {"bits": how.bits, "levels": list(how.levels), "block": how.block}


def parse_metadata(metadata: Mapping[str, str]) -> dict[str, Told]:
    """The compressed weights: name -> (shape, coding). The text may be anybody's.

    InvalidSafetensors says what is wrong with it; UnsupportedVersion for one of a newer release.
    """
    if _KEY not in metadata:
        raise InvalidSafetensors(f"it is no export: its metadata has no {_KEY!r}")
    document = _parse_json(metadata[_KEY])
    version = document.get("version")
    if type(version) is not int:
        raise InvalidSafetensors("its metadata does not say the version of the export")
    if version != VERSION:
        raise UnsupportedVersion(
            f"it is an export of version {str(version)[:20]}; this release reads {VERSION}: update"
            " deltahub"
        )
    weights = document.get("weights")
    if document.keys() != {"version", "weights"} or not isinstance(weights, dict):
        raise InvalidSafetensors("its metadata has not exactly version and weights")
    return {name: _told_weight(name, each) for name, each in weights.items()}


def shown(name: str) -> str:
    """A weight's name in a message: a stranger's may be long, or steer a terminal."""
    short = name if len(name) <= 200 else name[:200] + "..."
    return short if short.isprintable() else ascii(short)


def _parse_json(text: str) -> dict[str, object]:
    most = DEFAULT_LIMITS.max_tensors
    fault = json_fault(
        text.encode(),
        max_depth=4,
        # Each weight is an object with two arrays, within two objects.
        max_containers=3 * most + 2,
        # Its name and fields, and the numbers of its shape and levels.
        max_values=32 * most,
    )
    if fault is not None:
        raise InvalidSafetensors(f"the JSON on its weights is refused: {fault}")
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as exc:
        raise InvalidSafetensors(f"what it says of its weights is not JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise InvalidSafetensors("what it says of its weights is not an object")
    return document


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise InvalidSafetensors("what it says of its weights has a name twice")
    return entries


def _told_weight(name: str, each: object) -> Told:
    if not isinstance(each, dict) or each.keys() not in (_FIELDS, _INTEGER_FIELDS):
        raise InvalidSafetensors(
            f"{shown(name)} has not exactly {', '.join(sorted(_FIELDS))}, or dtype, form, shape"
        )
    shape, dtype = each["shape"], each["dtype"]
    if not _is_naturals(shape) or len(shape) > MAX_DIMENSIONS:
        raise InvalidSafetensors(
            f"{shown(name)} has a shape that is not up to {MAX_DIMENSIONS} whole numbers"
        )
    if not isinstance(dtype, str) or dtype not in DType.__members__:
        raise InvalidSafetensors(f"{shown(name)} has an unknown dtype, {dtype!a:.40}")
    if not 1 <= prod(shape) * DType[dtype].itemsize <= MAX_TENSOR_BYTES:
        raise InvalidSafetensors(
            f"{shown(name)} of {dtype} has a shape of no elements, or of more than"
            f" {MAX_TENSOR_BYTES} bytes"
        )
    try:
        how = _told_coding(name, DType[dtype], each)
    except InvalidInput as exc:  # the caller's fault in a Coding, here the file's
        raise InvalidSafetensors(f"{shown(name)}: {exc}") from exc
    return tuple(shape), how


def _told_coding(name: str, dtype: DType, each: dict[str, Any]) -> AnyCoding:
    if "form" in each:
        if each["form"] != _INTEGERS:
            raise InvalidSafetensors(f"{shown(name)} has an unknown form, {each['form']!a:.40}")
        return IntegerCoding(dtype, shape_to_rows(each["shape"])[1])
    levels, bits, block = each["levels"], each["bits"], each["block"]
    if not _is_naturals(levels) or len(levels) > _MAX_LEVELS or not _is_naturals([bits, block]):
        raise InvalidSafetensors(
            f"{shown(name)} has levels, bits or a block that are not whole numbers"
        )
    return Coding(dtype, bits, tuple(levels), block)


def _is_naturals(value: object) -> bool:
    # type() and not isinstance(), because bool is a subclass of int.
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item <= MAX_TENSOR_BYTES for item in value
    )

"""The recipe, which rebuilds a file from tensors and literals. Format: codecs/spec/recipe.md."""

import json
import struct
from dataclasses import dataclass
from math import prod
from typing import Final, cast
from typing import Literal as OneOf

import xxhash

from deltahub.codecs.dtypes import HEADER_BITS
from deltahub.codecs.errors import CorruptRecipe, InvalidInput, UnsupportedVersion
from deltahub.codecs.files.json_bounds import json_fault
from deltahub.codecs.ids import ID_BYTES, tensor_id
from deltahub.codecs.protocol import Buffer

RECIPE_MAGIC: Final = b"DHRC"
RECIPE_VERSION: Final = 1
MAX_RECIPE: Final = 64 << 20
MAX_SEGMENTS: Final = 250_000
MAX_LITERAL: Final = 1 << 20
MAX_DIMENSIONS: Final = 64
_MAX_FILE: Final = 1 << 50
_HEAD: Final = struct.Struct("<4sB3xI")
_CHECKSUM: Final = struct.Struct("<Q")  # XXH3-64 of all bytes before it

RecipeKind = OneOf["safetensors", "opaque"]


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes of the file that the recipe contains: 1 to MAX_LITERAL."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class TensorRef:
    """All bytes of a tensor. name: its key in a safetensors header; None for a chunk of bytes.

    dtype and shape are those of the file; size is their product in bytes.
    """

    tensor: bytes
    size: int
    dtype: str
    shape: tuple[int, ...]
    name: str | None


@dataclass(frozen=True)
class Recipe:
    """A file as segments, back to back. Equal recipes have equal bytes, and so equal ids."""

    size: int
    sha256: bytes
    kind: RecipeKind
    segments: tuple[Literal | TensorRef, ...]

    @property
    def id(self) -> bytes:
        """BLAKE3 of the recipe's bytes."""
        return tensor_id(self.to_bytes())

    def tensors(self) -> list[TensorRef]:
        return [segment for segment in self.segments if isinstance(segment, TensorRef)]

    def to_bytes(self) -> bytes:
        """The canonical form. InvalidInput if the segments do not make a file of size and kind."""
        fault = _fault(self)
        if fault is not None:
            raise InvalidInput(fault)
        data = _serialize(self)
        if len(data) > MAX_RECIPE:
            raise InvalidInput(f"a recipe of {len(data)} bytes; at most {MAX_RECIPE} are allowed")
        return data

    @classmethod
    def from_bytes(cls, data: Buffer) -> "Recipe":
        """The recipe with these bytes. CorruptRecipe unless they are its canonical form."""
        view = memoryview(data).cast("B")
        if not _HEAD.size + _CHECKSUM.size <= len(view) <= MAX_RECIPE:
            raise CorruptRecipe(f"a recipe of {len(view)} bytes; at most {MAX_RECIPE} are allowed")
        magic, version, json_length = _HEAD.unpack_from(view)
        if magic != RECIPE_MAGIC:
            raise CorruptRecipe(f"a recipe begins with {RECIPE_MAGIC!r}, not {magic!r}")
        if version != RECIPE_VERSION:
            raise UnsupportedVersion(f"recipe version {version}; this release reads 1")
        end = len(view) - _CHECKSUM.size
        if xxhash.xxh3_64_intdigest(view[:end]) != _CHECKSUM.unpack_from(view, end)[0]:
            raise CorruptRecipe("the recipe's checksum does not match its bytes")
        body = _HEAD.size + json_length
        if body > end:
            raise CorruptRecipe("the recipe is cut off within its JSON")
        recipe = _parse(bytes(view[_HEAD.size : body]), view[body:end])
        fault = _fault(recipe)
        if fault is not None:
            raise CorruptRecipe(fault)
        # Finds spaces, another order, duplicate keys and unused bytes, which parsing accepts.
        if _serialize(recipe) != view:
            raise CorruptRecipe("the recipe is not in its canonical form")
        return recipe


def _serialize(recipe: Recipe) -> bytes:
    refs = recipe.tensors()
    segments = [
        segment.size
        if isinstance(segment, Literal)
        else [segment.name, segment.dtype, list(segment.shape)]
        for segment in recipe.segments
    ]
    document = {
        "kind": recipe.kind,
        "segments": segments,
        "sha256": recipe.sha256.hex(),
        "size": recipe.size,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")
    head = _HEAD.pack(RECIPE_MAGIC, RECIPE_VERSION, len(text))
    literals = [segment.data for segment in recipe.segments if isinstance(segment, Literal)]
    checked = b"".join([head, text, *(ref.tensor for ref in refs), *literals])
    return checked + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(checked))


def _fault(recipe: Recipe) -> str | None:
    if len(recipe.segments) > MAX_SEGMENTS:
        return f"{len(recipe.segments)} segments; at most {MAX_SEGMENTS} are allowed"
    if recipe.kind not in ("safetensors", "opaque") or len(recipe.sha256) != 32:
        return "a recipe has a kind, safetensors or opaque, and a SHA-256 of 32 bytes"
    for segment in recipe.segments:
        if isinstance(segment, Literal):
            if not 1 <= segment.size <= MAX_LITERAL:
                return f"a literal of {segment.size} bytes; 1 to {MAX_LITERAL} are allowed"
        else:
            fault = _ref_fault(segment)
            if fault is not None:
                return fault
            if segment.name is not None and recipe.kind == "opaque":
                return "an opaque file has no named tensors"
    total = sum(segment.size for segment in recipe.segments)
    if total != recipe.size or total > _MAX_FILE:
        return f"the segments make {total} bytes, the file has {recipe.size}"
    return None


def _ref_fault(ref: TensorRef) -> str | None:
    if len(ref.tensor) != ID_BYTES:
        return f"a tensor id has {ID_BYTES} bytes"
    if ref.dtype not in HEADER_BITS or len(ref.shape) > MAX_DIMENSIONS:
        return f"a tensor of unknown dtype {ref.dtype!a:.40} or with too many dimensions"
    if min(ref.shape, default=1) < 1 or prod(ref.shape) * HEADER_BITS[ref.dtype] != 8 * ref.size:
        return f"a tensor of {ref.dtype} {ref.shape!a:.200} does not have {ref.size} bytes"
    if ref.name is not None and not _is_text(ref.name):
        return f"{ref.name!a} has half a surrogate pair"
    return None


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _parse(text: bytes, body: memoryview) -> Recipe:
    fault = json_fault(
        text,
        max_depth=4,
        max_containers=2 * MAX_SEGMENTS + 2,
        max_values=16 * MAX_SEGMENTS,
    )
    if fault is not None:
        raise CorruptRecipe(f"the recipe's JSON is refused: {fault}")
    try:
        document = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError) as exc:
        raise CorruptRecipe(f"the recipe's JSON does not parse: {exc}") from exc
    if not isinstance(document, dict) or document.keys() != {"kind", "segments", "sha256", "size"}:
        raise CorruptRecipe("a recipe has exactly kind, segments, sha256 and size")
    kind, items = document["kind"], document["segments"]
    if type(document["size"]) is not int or not isinstance(items, list):
        raise CorruptRecipe("a recipe's size is a number and its segments a list")
    try:
        sha256 = bytes.fromhex(document["sha256"])
    except (TypeError, ValueError) as exc:
        raise CorruptRecipe("a recipe's sha256 is text in hex") from exc
    if kind not in ("safetensors", "opaque"):
        raise CorruptRecipe(f"{kind!a:.40} is no kind of recipe")
    segments = _parse_segments(items, body)
    return Recipe(document["size"], sha256, cast("RecipeKind", kind), segments)


def _parse_segments(items: list[object], body: memoryview) -> tuple[Literal | TensorRef, ...]:
    ids_end = ID_BYTES * sum(1 for item in items if isinstance(item, list))
    id_begin, literal_begin = 0, ids_end
    segments: list[Literal | TensorRef] = []
    for item in items:
        if isinstance(item, list):
            tensor = bytes(body[id_begin : id_begin + ID_BYTES])
            segments.append(_parse_ref(item, tensor))
            id_begin += ID_BYTES
        elif type(item) is int and 1 <= item <= MAX_LITERAL:
            data = bytes(body[literal_begin : literal_begin + item])
            segments.append(Literal(data))
            literal_begin += item
        else:
            raise CorruptRecipe(f"a segment is a list or a length to {MAX_LITERAL}")
    if literal_begin != len(body):
        raise CorruptRecipe("the recipe's ids and literals do not fill it exactly")
    return tuple(segments)


def _parse_ref(item: list[object], tensor: bytes) -> TensorRef:
    if len(item) != 3:
        raise CorruptRecipe("a tensor segment is name, dtype and shape")
    name, dtype, shape = item
    if not (name is None or isinstance(name, str)) or not isinstance(dtype, str):
        raise CorruptRecipe("a tensor's name is text or null, its dtype text")
    if not isinstance(shape, list) or not all(
        type(size) is int and 1 <= size < 1 << 50 for size in shape
    ):
        raise CorruptRecipe("a tensor's shape is a list of whole numbers from 1")
    if len(shape) > MAX_DIMENSIONS:
        raise CorruptRecipe(f"a tensor of more than {MAX_DIMENSIONS} dimensions")
    bits = prod(shape) * HEADER_BITS.get(dtype, 0)
    return TensorRef(tensor, bits // 8, dtype, tuple(shape), name)

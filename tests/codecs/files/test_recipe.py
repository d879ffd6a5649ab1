"""A recipe has one form: it is read back equal, and any other form is refused."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    CodecError,
    CorruptRecipe,
    InvalidInput,
    Literal,
    Recipe,
    TensorRef,
    UnsupportedVersion,
    tensor_id,
)
from deltahub.codecs.files.recipe import MAX_LITERAL, MAX_SEGMENTS
from support.codecs.frames import seal

A, B = tensor_id(b"a"), tensor_id(b"b")
RECIPE = Recipe(
    size=5 + 24 + 2 + 4,
    sha256=bytes(range(32)),
    kind="safetensors",
    segments=(
        Literal(b"head\n"),
        TensorRef(A, 24, "F32", (2, 3), "layer \u00e4 \U0001f600"),
        Literal(b"\0\1"),
        TensorRef(B, 4, "U8", (4,), None),
    ),
)
DATA = RECIPE.to_bytes()
DOCUMENT: dict[str, Any] = json.loads(DATA[12:].split(b"}")[0] + b"}")
BODY = A + B + b"head\n\0\1"


def forged(document: object, body: bytes = BODY, version: int = 1) -> bytes:
    text = document if isinstance(document, bytes) else compact(document)
    return seal(struct.pack("<4sB3xI", b"DHRC", version, len(text)) + text + body)


def compact(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


literals = st.builds(Literal, st.binary(min_size=1, max_size=50))
refs = st.builds(
    lambda tensor, shape, name: TensorRef(tensor, 2 * shape[0] * shape[1], "BF16", shape, name),
    st.binary(min_size=32, max_size=32),
    st.tuples(st.integers(1, 1000), st.integers(1, 1000)),
    st.one_of(st.none(), st.text(max_size=10)),
)


@given(
    segments=st.lists(st.one_of(literals, refs), max_size=8),
    sha256=st.binary(min_size=32, max_size=32),
)
def test_a_recipe_is_read_back_equal(segments: list[Literal | TensorRef], sha256: bytes) -> None:
    size = sum(segment.size for segment in segments)
    recipe = Recipe(size, sha256, "safetensors", tuple(segments))
    data = recipe.to_bytes()
    assert Recipe.from_bytes(data) == recipe
    assert recipe.id == tensor_id(data)


def test_elements_of_half_a_byte_are_counted_in_bytes() -> None:
    recipe = Recipe(3, bytes(32), "safetensors", (TensorRef(A, 3, "F4", (2, 3), "x"),))
    assert Recipe.from_bytes(recipe.to_bytes()) == recipe


def test_every_truncation_is_refused() -> None:
    for length in range(len(DATA)):
        with pytest.raises(CodecError):
            Recipe.from_bytes(DATA[:length])


def test_bytes_after_the_recipe_are_refused() -> None:
    with pytest.raises(CorruptRecipe):
        Recipe.from_bytes(DATA + b"\0")


def test_every_flipped_bit_is_refused() -> None:
    for bit in range(8 * len(DATA)):
        damaged = bytearray(DATA)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CodecError):
            Recipe.from_bytes(damaged)


@given(junk=st.binary(max_size=200))
def test_junk_is_refused(junk: bytes) -> None:
    for candidate in (junk, forged(junk)):
        with pytest.raises(CodecError):
            Recipe.from_bytes(candidate)


def changed(**values: object) -> bytes:
    return forged(DOCUMENT | values)


def with_ref(*item: object) -> bytes:
    return changed(segments=[5, list(item), 2, [None, "U8", [4]]])


NAME = DOCUMENT["segments"][1][0]

FORGED = {
    "spaces": forged(json.dumps(DOCUMENT, sort_keys=True).encode()),
    "keys in another order": forged(
        json.dumps(dict(reversed(DOCUMENT.items())), separators=(",", ":")).encode()
    ),
    "a key twice": forged(compact(DOCUMENT)[:-1] + b',"size":35}'),
    "letters that are not escaped": forged(
        json.dumps(DOCUMENT, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ),
    "a key too many": changed(more=1),
    "a key too few": forged({k: v for k, v in DOCUMENT.items() if k != "kind"}),
    "a list for an object": forged([1, 2]),
    "a kind of its own": changed(kind="pickle"),
    "a kind that is no text": changed(kind=["opaque"]),
    "names in an opaque file": changed(kind="opaque"),
    "a size that is not the sum": changed(size=36),
    "a size that is a float": changed(size=35.0),
    "a size that is true": changed(size=True),
    "a hash in capitals": changed(sha256=DOCUMENT["sha256"].upper()),
    "a hash that is short": changed(sha256="00"),
    "a hash that is no text": changed(sha256=5),
    "segments that are no list": changed(segments={}),
    "a segment that is text": changed(segments=["x"]),
    "a literal of no bytes": changed(segments=[0, *DOCUMENT["segments"]]),
    "a literal that is negative": changed(segments=[-1, *DOCUMENT["segments"]]),
    "a literal that is true": changed(segments=[5, DOCUMENT["segments"][1], 1, True]),
    "a literal above its limit": changed(segments=[MAX_LITERAL + 1]),
    "a literal of 4 EiB": changed(segments=[1 << 62], size=1 << 62),
    "a tensor without a shape": with_ref(NAME, "F32"),
    "a tensor with four fields": with_ref(NAME, "F32", [2, 3], 1),
    "a tensor with a name that is a number": with_ref(5, "F32", [2, 3]),
    "a name with half a surrogate pair": with_ref("\ud800", "F32", [2, 3]),
    "a tensor of an unknown dtype": with_ref(NAME, "F99", [2, 3]),
    "a tensor with a dtype that is a number": with_ref(NAME, 5, [2, 3]),
    "a shape with a zero": with_ref(NAME, "F32", [0]),
    "a shape with a negative size": with_ref(NAME, "F32", [-2, -3]),
    "a shape with true in it": with_ref(NAME, "F32", [True, 6]),
    "a shape with a float in it": with_ref(NAME, "F32", [6.0]),
    "a shape with too many dimensions": with_ref(NAME, "F32", [1] * 64 + [6]),
    "a shape of 2^60 elements": with_ref(NAME, "F32", [1 << 30, 1 << 30]),
    "a shape that does not fill whole bytes": with_ref(NAME, "F4", [1]),
    "one id too few": forged(DOCUMENT, BODY[32:]),
    "one id too many": forged(DOCUMENT, A + BODY),
    "a JSON longer than the recipe": seal(DATA[:8] + b"\xff\xff\xff\xff" + DATA[12:-8]),
    "a JSON that reaches into the checksum": seal(struct.pack("<4sB3xI", b"DHRC", 1, 3) + b"{}"),
    "unused bytes": seal(DATA[:6] + b"\1" + DATA[7:-8]),
    "another checksum": DATA[:-8] + bytes(8),
    "arrays nested deeply": forged(b"[" * 100_000 + b"]" * 100_000),
    "a number of a million digits": forged(b'{"size":' + b"9" * 1_000_000 + b"}"),
    "a text without an end": forged(b'{"size":"'),
    "another magic": b"DHRX" + DATA[4:],
}


@pytest.mark.parametrize("fault", list(FORGED))
def test_a_recipe_is_refused_that_has(fault: str) -> None:
    assert Recipe.from_bytes(forged(DOCUMENT)) == RECIPE
    with pytest.raises(CorruptRecipe):
        Recipe.from_bytes(FORGED[fault])


def test_more_segments_than_allowed_are_refused_before_they_are_parsed() -> None:
    many = b'{"segments":[' + b"[]," * (2 * MAX_SEGMENTS + 5) + b"[]]}"
    with pytest.raises(CorruptRecipe, match="arrays and objects"):
        Recipe.from_bytes(forged(many))


def test_a_newer_version_is_named_as_such() -> None:
    with pytest.raises(UnsupportedVersion):
        Recipe.from_bytes(forged(DOCUMENT, version=2))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(6, bytes(32), "opaque", (Literal(b"12345"),)),
        Recipe(5, bytes(31), "opaque", (Literal(b"12345"),)),
        Recipe(0, bytes(32), "opaque", (Literal(b""),)),
        Recipe(4, bytes(32), "opaque", (TensorRef(b"short", 4, "U8", (4,), None),)),
        Recipe(4, bytes(32), "opaque", (TensorRef(A, 4, "F32", (2,), None),)),
        Recipe(4, bytes(32), "opaque", (TensorRef(A, 4, "U8", (4,), "name"),)),
        Recipe(4, bytes(32), "safetensors", (TensorRef(A, 4, "U8", (4,), "\udc00"),)),
    ],
)
def test_a_recipe_that_makes_no_file_is_not_written(recipe: Recipe) -> None:
    with pytest.raises(InvalidInput):
        recipe.to_bytes()


def test_an_empty_file_has_a_recipe() -> None:
    recipe = Recipe(0, bytes(32), "opaque", ())
    assert Recipe.from_bytes(recipe.to_bytes()) == recipe

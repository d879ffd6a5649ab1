"""Bytes that earlier releases wrote are still read, and damaged ones still refused.

Vectors are written once, by the release that brings a version in, and never rewritten. In each:
`about`, `expect` ("ok" or an error code), the bytes in hex, and what they decode to, from `base`
where the codec needs one. `times` repeats a short `raw`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from deltahub.codecs import (
    CodecError,
    FrameView,
    Recipe,
    decode_frame,
    read_index,
    tensor_id,
    verify_pack_hash,
)

ROOT = Path(__file__).parents[1] / "vectors"
FRAMES = ["fm_delta", "frame", "masks", "neuzip_lossless", "raw", "zstd"]


def vectors(*formats: str) -> pytest.MarkDecorator:
    paths = sorted(path for name in formats for path in (ROOT / name).glob("v*/*.json"))
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(ROOT)))


def load(path: Path) -> dict[str, Any]:
    vector: dict[str, Any] = json.loads(path.read_text())
    return vector


@vectors(*FRAMES)
def test_a_frame_vector(path: Path) -> None:
    vector = load(path)
    frame = bytes.fromhex(vector["frame"])
    raw = bytes.fromhex(vector["raw"]) * vector.get("times", 1)
    base = bytes.fromhex(vector["base"]) if "base" in vector else None
    if vector["expect"] == "ok":
        assert decode_frame(frame, base) == raw
        return
    with pytest.raises(CodecError) as error:
        decode_frame(frame, base)
    assert error.value.code == vector["expect"]


@vectors(*FRAMES)
def test_a_good_frame_vector_names_its_folder(path: Path) -> None:
    vector = load(path)
    if vector["expect"] == "ok":
        header = FrameView.parse(bytes.fromhex(vector["frame"])).header
        codec, version = path.parts[-3], path.parts[-2]
        assert codec in ("frame", header.codec)
        assert version == f"v{header.codec_version}"


def check_pack(pack: bytes) -> list[list[object]]:
    entries = read_index(lambda offset, length: pack[offset : offset + length], len(pack))
    assert verify_pack_hash([pack]) == tensor_id(pack)
    return [[entry.offset, entry.length, entry.tensor.hex()] for entry in entries]


@vectors("pack")
def test_a_pack_vector(path: Path) -> None:
    vector = load(path)
    pack = bytes.fromhex(vector["pack"])
    if vector["expect"] == "ok":
        assert check_pack(pack) == vector["entries"]
        return
    with pytest.raises(CodecError) as error:
        check_pack(pack)
    assert error.value.code == vector["expect"]


@vectors("recipe")
def test_a_recipe_vector(path: Path) -> None:
    vector = load(path)
    data = bytes.fromhex(vector["recipe"])
    if vector["expect"] == "ok":
        recipe = Recipe.from_bytes(data)
        assert recipe.size == vector["size"]
        assert recipe.sha256.hex() == vector["sha256"]
        assert recipe.id.hex() == vector["id"]
        return
    with pytest.raises(CodecError) as error:
        Recipe.from_bytes(data)
    assert error.value.code == vector["expect"]


@pytest.mark.parametrize("name", [*FRAMES, "pack", "recipe"])
def test_every_format_has_good_and_bad_vectors(name: str) -> None:
    expected = {load(path)["expect"] == "ok" for path in (ROOT / name).glob("v*/*.json")}
    assert expected == {True, False}

"""Bytes that earlier releases wrote are still read, and damaged ones still refused.

Vectors are written once, by the release that brings a version in, and never rewritten. In each:
`about`, `expect` ("ok" or an error code), the bytes in hex, and what they decode to, from `base`
where the codec needs one. `sources` are the tensors that a view makes this base of. `times` repeats
a short `raw`. An export has its weights at each level, and the originals, which are still rounded
to these, with the steps of those of integers.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from deltahub.codecs import (
    CodecError,
    FrameView,
    Recipe,
    assemble,
    decode_frame,
    read_index,
    tensor_id,
    verify_pack_hash,
)
from deltahub.codecs.exports.file import ExportFile
from deltahub.codecs.exports.integers import IntegerCoding
from support.codecs.exports import coded, decoded
from support.codecs.integers import decode_parts, parts_of
from support.codecs.kernels import every_kernel, running

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
        frame = bytes.fromhex(vector["frame"])
        header = FrameView.parse(frame).header
        codec, version = path.parts[-3], path.parts[-2]
        assert codec in ("frame", header.codec)
        # Of the frame itself, or of its codec.
        number = frame[4] if codec == "frame" else header.codec_version
        assert version == f"v{number}"


@vectors("frame")
def test_a_view_still_gives_the_base_of_a_vector(path: Path) -> None:
    vector = load(path)
    if "sources" not in vector:
        return
    sources = {bytes.fromhex(name): bytes.fromhex(data) for name, data in vector["sources"].items()}
    header = FrameView.parse(bytes.fromhex(vector["frame"])).header
    assert header.base is not None
    assert header.base.view is not None
    base = bytearray(header.size_bytes)

    def read(tensor: bytes, first: int, out: memoryview) -> None:
        out[:] = sources[tensor][first : first + len(out)]

    assemble(header.base, header.dtype, 0, header.count, read, memoryview(base))
    assert base.hex() == vector["base"]


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


def read_export(data: bytes) -> dict[str, dict[str, str]]:
    file = ExportFile(data, "a file")
    return {
        name: {str(level): decoded(file, name, level).hex() for level in weight.coding.levels}
        for name, weight in file.weights.items()
    }


def assert_vector_of_integers(
    how: IntegerCoding, words: bytes, steps: bytes, told: dict[str, str]
) -> None:
    """The originals and the steps still give these elements."""
    parts, kept = parts_of(how, words, steps)
    count = len(words) // how.dtype.itemsize
    assert {"8": kept.hex()} == {"8": decode_parts(how, parts, count).hex()} == told


@every_kernel
@vectors("neuzip")
def test_an_export_vector(path: Path, kernels: str) -> None:
    vector = load(path)
    data = bytes.fromhex(vector["file"])
    with running(kernels):
        if vector["expect"] == "ok":
            assert read_export(data) == vector["weights"]
            for name, weight in ExportFile(data, "a file").weights.items():
                words = bytes.fromhex(vector["originals"][name])
                if isinstance(weight.coding, IntegerCoding):
                    steps = bytes.fromhex(vector["steps"][name])
                    assert_vector_of_integers(weight.coding, words, steps, vector["weights"][name])
                    continue
                for level in weight.coding.levels:
                    made = coded(weight.coding, words, level)
                    assert made.hex() == vector["weights"][name][str(level)]
            return
        with pytest.raises(CodecError) as error:
            read_export(data)
    assert error.value.code == vector["expect"]


@pytest.mark.parametrize("name", [*FRAMES, "neuzip", "pack", "recipe"])
def test_every_format_has_good_and_bad_vectors(name: str) -> None:
    expected = {load(path)["expect"] == "ok" for path in (ROOT / name).glob("v*/*.json")}
    assert expected == {True, False}

"""A damaged export is refused by the name of the weight, and a stranger's one with a message."""

import json
import re
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import (
    CodecError,
    CorruptFrame,
    DType,
    FrameView,
    InvalidSafetensors,
    UnsupportedVersion,
    encode_frame,
)
from deltahub.codecs.exports.coding import WORDS, coding, lossless, open_part
from deltahub.codecs.exports.file import FILE_NAME, ExportFile, export_metadata, map_export
from deltahub.codecs.frames.encode import FrameRange, TensorSpec
from support.codecs.deltas import fine_tune
from support.codecs.exports import decoded, export_of, frames_of, opened, told, weight
from support.codecs.frames import forge_header, forge_table, seal, table_of

ROUNDED = coding(DType.BF16, 3, 16, [0, 1])
WEIGHTS = {
    "a.weight": weight(ROUNDED, fine_tune(DType.BF16, 1003)[0]),
    "b.weight": weight(lossless(DType.F32), fine_tune(DType.F32, 21)[0]),
}
# What a message may begin with: the weight, after the file.
NAMED = re.compile(r"(the file: )?[ab]\.weight: ")


@cache
def small_file() -> bytes:
    return export_of(WEIGHTS)


def read_all(data: bytes) -> dict[tuple[str, int], bytes]:
    file = ExportFile(data, "the file")
    return {
        (name, level): decoded(file, name, level)
        for name, found in file.weights.items()
        for level in found.coding.levels
    }


def header_end(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def assert_refused_or_as_before(data: bytes, at: int) -> None:
    """After a change at byte `at`: refused by name, unless the JSON changed to another good one."""
    is_in_header = at < header_end(small_file())
    error = error_of(data)
    assert is_in_header or NAMED.match(error)
    assert "\n" not in error


def error_of(data: bytes) -> str:
    """What is said of a file that is refused; nothing if it can be read."""
    try:
        read_all(data)
    except CodecError as exc:
        return str(exc)
    return ""


def test_every_byte_that_changes_is_noticed() -> None:
    good = small_file()
    changes = np.random.default_rng(0).integers(1, 256, len(good)).tolist()
    for at in range(header_end(good), len(good)):
        damaged = bytearray(good)
        damaged[at] ^= changes[at]
        assert_refused_or_as_before(bytes(damaged), at)


@settings(max_examples=400)
@given(data=st.data())
def test_a_changed_header_is_refused_or_another_valid_one(data: st.DataObject) -> None:
    good = small_file()
    at = data.draw(st.integers(0, header_end(good) - 1))
    letters = st.sampled_from(list(b'0123456789",:{}[]\\ -.eEa\0\xff'))
    damaged = bytearray(good)
    damaged[at] = data.draw(letters | st.integers(0, 255))
    assert_refused_or_as_before(bytes(damaged), at)


def test_a_file_that_is_cut_off_is_refused() -> None:
    good = small_file()
    for length in range(0, len(good), 7):
        with pytest.raises(InvalidSafetensors, match="the file: "):
            ExportFile(good[:length], "the file")


def test_a_file_is_mapped_and_an_empty_one_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(small_file())
    file = map_export(path)
    assert decoded(file, "a.weight", 1) == read_all(small_file())["a.weight", 1]
    path.write_bytes(b"")
    with pytest.raises(InvalidSafetensors, match=f"{FILE_NAME} is empty"):
        map_export(path)


def test_plain_tensors_are_those_that_no_weight_has() -> None:
    plain = {"norm": ("F32", (2,), bytes(8)), "odd.nz.words": ("U8", (3,), b"abc")}
    file = ExportFile(export_of(WEIGHTS, plain), "the file")
    assert list(file.weights) == ["a.weight", "b.weight"]
    assert {name: bytes(file.bytes_of(info)) for name, info in file.plain.items()} == {
        "norm": bytes(8), "odd.nz.words": b"abc"
    }  # fmt: skip


CONTRADICTIONS: dict[str, dict[str, tuple[str, tuple[int, ...], bytes]]] = {
    "a plain tensor of the same name": {"a.weight": ("F32", (1,), bytes(4))},
    "a part that no reader needs": {"a.weight.nz.m5": ("U8", (1,), b"\0")},
}


@pytest.mark.parametrize("fault", list(CONTRADICTIONS))
def test_a_tensor_that_contradicts_a_weight_is_refused(fault: str) -> None:
    with pytest.raises(InvalidSafetensors, match=r"the file: the tensor a\.weight.* contradicts"):
        ExportFile(export_of(WEIGHTS, CONTRADICTIONS[fault]), "the file")


def good_document() -> dict[str, Any]:
    names = {name: (each.shape, each.coding) for name, each in WEIGHTS.items()}
    document: dict[str, Any] = json.loads(export_metadata(names)["neuzip"])
    return document


def changed(**fields: object) -> dict[str, Any]:
    """The good document with other fields for the first weight."""
    document = good_document()
    document["weights"]["a.weight"] |= fields
    return document


def without(field: str) -> dict[str, Any]:
    document = good_document()
    del document["weights"]["a.weight"][field]
    return document


DEEP = "[" * 100_000
STRANGE: dict[str, tuple[object, str]] = {
    "no JSON": ("weights", "not JSON"),
    "an array": ([], "not an object"),
    "a number": (7, "not an object"),
    "nothing": ("", "not JSON"),
    "brackets without an end": (DEEP, "nest deeper|arrays and objects"),
    "deep brackets": ('{"version":1,"weights":' + DEEP + "]" * 100_000 + "}", "refused"),
    "few deep brackets": ('{"version":1,"weights":[[[[[[]]]]]]}', "nest deeper"),
    "a name twice": ('{"version":1,"version":1,"weights":{}}', "a name twice"),
    "a number of 5000 digits": ('{"version":' + "9" * 5000 + "}", "not JSON"),
    "many values": ('{"version":1,"weights":{"a":[' + "1," * 4_000_000 + "1]}}", "values"),
    "no version": ({"weights": {}}, "version"),
    "a version that is true": ({"version": True, "weights": {}}, "version"),
    "a version that is text": ({"version": "1", "weights": {}}, "version"),
    "a version that is no whole number": ({"version": 1.0, "weights": {}}, "version"),
    "no weights": ({"version": 1}, "exactly version and weights"),
    "weights in an array": ({"version": 1, "weights": []}, "exactly version and weights"),
    "another field": ({"version": 1, "weights": {}, "more": 1}, "exactly version and weights"),
    "a weight that is a number": ({"version": 1, "weights": {"a": 1}}, "a has not exactly"),
    "a weight with another field": (changed(more=1), "has not exactly"),
    "no shape": (without("shape"), "has not exactly"),
    "no block": (without("block"), "has not exactly"),
    "a shape that is a number": (changed(shape=1003), "shape"),
    "a shape with a negative number": (changed(shape=[-1003]), "shape"),
    "a shape with a fraction": (changed(shape=[1003.0]), "shape"),
    "a shape with true": (changed(shape=[1003, True]), "shape"),
    "a shape of too many dimensions": (changed(shape=[1003, *[1] * 64]), "shape"),
    "a shape of no elements": (changed(shape=[1003, 0]), "no elements"),
    "a shape of too many elements": (changed(shape=[1 << 40]), "more than"),
    "a shape of a huge number": (changed(shape=[1 << 200]), "shape"),
    "a shape of huge numbers": (changed(shape=[1 << 40] * 64), "more than"),
    "an unknown dtype": (changed(dtype="BF17"), "unknown dtype, 'BF17'"),
    "a dtype of integers": (changed(dtype="I8"), "no mantissa"),
    "a dtype that is a number": (changed(dtype=16), "unknown dtype"),
    "a dtype that is an array": (changed(dtype=[]), "unknown dtype"),
    "a long dtype": (changed(dtype="x" * 10_000), "unknown dtype, 'x{30,39}$"),
    "bits that are text": (changed(bits="3"), "whole numbers"),
    "bits that are nothing": (changed(bits=None), "whole numbers"),
    "bits that are true": (changed(bits=True), "whole numbers"),
    "more bits than there are": (changed(bits=8, levels=[8]), "has 7 mantissa bits, not 8"),
    "levels that are a number": (changed(levels=3), "whole numbers"),
    "no levels": (changed(levels=[]), "do not ascend"),
    "levels that descend": (changed(levels=[1, 0, 3]), "do not ascend"),
    "levels that end elsewhere": (changed(levels=[0, 1]), "do not ascend"),
    "a level twice": (changed(levels=[0, 0, 3]), "do not ascend"),
    "very many levels": (changed(levels=[0] * 1000), "whole numbers"),
    "a block of 24": (changed(block=24), "a block of 24"),
    "a block of a huge number": (changed(block=1 << 30), "a block of"),
    "a block of a lossless weight": (changed(bits=7, levels=[0, 7]), "not divided"),
    "a level without a part": (changed(levels=[0, 1, 2, 3]), "no tensor a.weight.nz.m2"),
    "a weight without parts": ({"version": 1, "weights": {"c": {
        "dtype": "BF16", "shape": [2], "bits": 7, "levels": [7], "block": 0}}},
        "no tensor c.nz.words"),
    "a name that steers a terminal": ({"version": 1, "weights": {"\x1b[2J": {
        "dtype": "BF16", "shape": [2], "bits": 7, "levels": [7], "block": 0}}},
        r"no tensor '\\x1b\[2J\.nz\.words'"),
    "a name with half a pair": ({"version": 1, "weights": {"\ud800": {}}}, r"'\\ud800' has not"),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(STRANGE))
def test_what_a_stranger_says_of_weights_is_refused_with_a_message(fault: str) -> None:
    document, message = STRANGE[fault]
    data = export_of(WEIGHTS, metadata=told(document))
    with pytest.raises(InvalidSafetensors, match=message) as error:
        ExportFile(data, "the file")
    assert str(error.value).startswith("the file: ")
    assert len(str(error.value)) < 400


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "more elements": (changed(shape=[1004]), "holds 1003 elements of BF16, not 1004"),
    "a slice more": (changed(shape=[1 << 23]), "is not exactly 2 frames"),
    "the most elements": (changed(shape=[1 << 39]), "is not exactly 131072 frames"),
    "another dtype": (changed(dtype="F16"), "not 1003 of F16"),
    "other blocks": (changed(block=32), "scales holds 63 elements of U8, not 32"),
    "other planes": (changed(levels=[0, 3]), "m3 holds 251 elements of U8, not 377"),
}


@pytest.mark.parametrize("fault", list(WRONG))
def test_parts_that_are_not_those_of_the_weight_are_refused_without_memory_for_it(
    fault: str,
) -> None:
    document, message = WRONG[fault]
    data = export_of(WEIGHTS, metadata=told(document))
    tracemalloc.start()
    try:
        with pytest.raises((CorruptFrame, InvalidSafetensors), match=message) as error:
            ExportFile(data, "the file")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "a.weight" in str(error.value)
    assert peak < 1 << 20


def test_a_newer_version_is_told_from_damage() -> None:
    data = export_of(WEIGHTS, metadata=told({"version": 2, "else": []}))
    with pytest.raises(UnsupportedVersion, match="version 2; this release reads 1: update"):
        ExportFile(data, "the file")


def test_a_file_that_is_no_export_is_refused() -> None:
    data = export_of({}, {"w": ("F32", (1,), bytes(4))}, {"format": "pt"})
    with pytest.raises(InvalidSafetensors, match="the file: it is no export"):
        ExportFile(data, "the file")


@settings(max_examples=50)
@given(junk=st.binary(max_size=200), text=st.text(max_size=60))
def test_junk_is_refused(junk: bytes, text: str) -> None:
    for data in (junk, len(junk).to_bytes(8, "little") + junk):
        with pytest.raises(CodecError):
            ExportFile(data, "the file")
    with pytest.raises(InvalidSafetensors):
        ExportFile(export_of(WEIGHTS, metadata=told(text)), "the file")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip


@given(field=st.sampled_from(["dtype", "shape", "bits", "levels", "block"]), value=json_values)
def test_any_value_of_a_field_is_refused_or_another_valid_one(field: str, value: object) -> None:
    data = export_of(WEIGHTS, metadata=told(changed(**{field: value})))
    error = error_of(data)
    assert any(part in error for part in ("a.weight", "refused", "not JSON")) or not error


def test_a_frame_of_something_else_is_no_part() -> None:
    words = WEIGHTS["a.weight"].words
    frames, _ = frames_of(ROUNDED, words)
    opened(ROUNDED, frames, 1003)
    faults = {
        "other codec": encode_frame(
            TensorSpec(bytes(32), DType.BF16, 1, 1003), FrameRange(0, 1003, 1, 1003), words,
            codec="zstd",
        ),
        "a range": forge_header(frames[WORDS], tensor_count=2000),
        "cut off": frames[WORDS][:-1],
        "followed by a byte": frames[WORDS] + b"\0",
        "another part": frames["m1"],
        "nothing": b"",
    }  # fmt: skip
    for frame in faults.values():
        with pytest.raises(CorruptFrame):
            open_part(ROUNDED, WORDS, frame, 1003)


def test_a_plane_with_a_coded_block_is_refused_before_its_bytes_are_used() -> None:
    frame = frames_of(ROUNDED, WEIGHTS["a.weight"].words)[0]["m3"]
    ((length, _, checksum),) = table_of(frame)
    forged = forge_table(frame, [(length - 1, 2, checksum)], frame[-length:-1])
    with pytest.raises(CorruptFrame, match="m3 is not raw in every block"):
        open_part(ROUNDED, "m3", forged, 1003)
    longer = forge_header(frame, prelude_length=1)
    at = FrameView.parse(frame).header.header_length
    sealed = seal(b"\0" + frame[at : at + 16])
    with pytest.raises(CorruptFrame):
        open_part(ROUNDED, "m3", longer[:at] + sealed + frame[-length:], 1003)


def test_bits_after_the_last_element_of_a_plane_are_refused() -> None:
    frames, _ = frames_of(ROUNDED, WEIGHTS["a.weight"].words)
    spec = TensorSpec(bytes(32), DType.U8, 1, 126)
    for last, is_good in ((0x00, True), (0x07, True), (0x08, False), (0x80, False)):
        plane = bytes(125) + bytes([last])  # of 1003 elements, 3 in the last byte
        frame = encode_frame(spec, FrameRange(0, 126, 1, 126), plane, codec="raw")
        if is_good:
            open_part(ROUNDED, "m1", frame, 1003)
        else:
            with pytest.raises(CorruptFrame, match="bits after its last element"):
                open_part(ROUNDED, "m1", frame, 1003)
    assert len(frames["m1"]) == len(frame)

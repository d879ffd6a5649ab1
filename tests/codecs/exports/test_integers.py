"""Weights of integers: decoding is step x integer, rounded once; damage is refused by name."""

import json
from collections.abc import Mapping

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import CodecError, CorruptFrame, DType, InvalidSafetensors, encode_frame
from deltahub.codecs.errors import InvalidInput
from deltahub.codecs.exports.coding import open_part
from deltahub.codecs.exports.file import ExportFile, export_metadata, part_name
from deltahub.codecs.exports.integers import (
    INTEGERS,
    MAX_COLUMNS,
    STEPS,
    IntegerCoding,
    encode_integers,
    multiply,
    nearest_words,
    numbers_of,
)
from deltahub.codecs.exports.parts import Part, frame_of
from deltahub.codecs.files.new_header import new_header
from deltahub.codecs.frames.base_plan import BasePlan, BaseSegment
from deltahub.codecs.frames.encode import FrameRange, TensorSpec
from deltahub.codecs.reference import neuzip as reference
from support.codecs.exports import LARGEST, ROUNDED, decoded
from support.codecs.integers import decode_parts, document, matrix, parts_of, steps_of
from support.codecs.processor_modes import MODES, in_mode

rounded = pytest.mark.parametrize("dtype", ROUNDED, ids=lambda dtype: dtype.name)
HOW = IntegerCoding(DType.BF16, 40)
WORDS = matrix(DType.BF16, 6, 40)


def multiplied(dtype: DType, integers: bytes, steps: bytes, columns: int) -> bytes:
    out = bytearray(len(integers) * dtype.itemsize)
    numbers = np.frombuffer(integers, np.int8).reshape(-1, columns)
    multiply(dtype, numbers, np.frombuffer(steps, f"<u{dtype.itemsize}"), memoryview(out))
    return bytes(out)


@rounded
@settings(max_examples=60)
@given(data=st.data())
def test_an_element_is_its_integer_times_the_step_as_the_reference_says(
    dtype: DType, data: st.DataObject
) -> None:
    rows, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 20))
    n = rows * columns
    integers = data.draw(st.binary(min_size=n, max_size=n))
    edges = st.sampled_from([0, 1, 127, 128, LARGEST[dtype] >> 1, LARGEST[dtype]])
    drawn = data.draw(
        st.lists(st.integers(0, LARGEST[dtype]) | edges, min_size=rows, max_size=rows)
    )
    steps = np.array(drawn, f"<u{dtype.itemsize}").tobytes()
    expected = reference.scale_integers(reference.Form(dtype), integers, steps, columns)
    assert multiplied(dtype, integers, steps, columns) == expected


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=lambda dtype: dtype.name)
def test_every_step_times_every_integer_is_the_nearest_word(dtype: DType) -> None:
    """By floats: a product has at most 18 significant bits, which a double holds."""
    steps = np.arange(LARGEST[dtype] + 1, dtype="<u2")
    integers = np.arange(256, dtype=np.uint8).tobytes()
    exact = numbers_of(dtype, steps)[:, np.newaxis] * np.arange(256, dtype=np.uint8).view(np.int8)
    made = multiplied(dtype, integers * len(steps), steps.tobytes(), 256)
    expected = nearest_words(dtype, exact)
    expected[expected == 0x8000] = 0  # a product of zero is positive
    assert made == expected.tobytes()


@rounded
@pytest.mark.parametrize("mode", list(MODES))
def test_the_modes_of_the_processor_do_not_show(dtype: DType, mode: str) -> None:
    steps = np.arange(60, dtype=f"<u{dtype.itemsize}").tobytes()
    integers = np.arange(256, dtype=np.uint8).tobytes() * 60
    expected = multiplied(dtype, integers, steps, 256)
    with in_mode(mode):
        assert multiplied(dtype, integers, steps, 256) == expected


@rounded
@settings(max_examples=30)
@given(data=st.data())
def test_what_is_encoded_decodes_to_the_nearest_multiples_of_the_steps(
    dtype: DType, data: st.DataObject
) -> None:
    rows, columns = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 90))
    words = matrix(dtype, rows, columns, data.draw(st.integers(0, 99)))
    steps = steps_of(dtype, words, columns, data.draw(st.sampled_from([1, 3, 20, 127])))
    how = IntegerCoding(dtype, columns)
    parts, kept = parts_of(how, words, steps)
    assert tuple(parts) == how.parts
    made = decode_parts(how, parts, rows * columns)
    assert made == kept
    before, after, each = (
        numbers_of(dtype, np.frombuffer(data, f"<u{dtype.itemsize}"))
        for data in (words, made, steps)
    )
    change = np.abs(after - before).reshape(rows, columns)
    # Half a step, and what the product is rounded by.
    room = 2.0 ** -(reference.Form(dtype).mantissa_bits + 1)
    assert (change <= each[:, np.newaxis] * (0.5 + 128 * room)).all()


@rounded
def test_any_range_of_elements_decodes_alone(dtype: DType) -> None:
    words = matrix(dtype, 50, 7)
    file = export_of(IntegerCoding(dtype, 7), (50, 7), words, steps_of(dtype, words, 7, 9))
    found, whole = ExportFile(file, "a file").weights["w"], decoded(ExportFile(file, "a file"), "w")
    for first, count in ((0, 1), (6, 2), (7, 7), (3, 340), (349, 1), (0, 350)):
        out = bytearray(count * dtype.itemsize)
        found.decode_range(first, count, memoryview(out))
        assert out == whole[first * dtype.itemsize : (first + count) * dtype.itemsize]


def test_slices_are_whole_rows() -> None:
    """Two slices: 2^22 is not a multiple of the columns."""
    rows, columns = 1500, 3001
    how = IntegerCoding(DType.BF16, columns)
    words = matrix(DType.BF16, rows, columns)
    steps = steps_of(DType.BF16, words, columns, 2)
    found = ExportFile(export_of(how, (rows, columns), words, steps), "a file").weights["w"]
    assert how.slice_elements == 1397 * columns
    assert [each[STEPS].view.header.count for each in found.slices] == [1397, 103]
    at, count = 1396 * columns - 5, 2 * columns
    out = bytearray(2 * count)
    found.decode_range(at, count, memoryview(out))
    integers = b"".join(bytes(integers_in(each)) for each in found.slices)
    assert multiplied(DType.BF16, integers, steps, columns)[2 * at : 2 * (at + count)] == out


def integers_in(parts: Mapping[str, Part]) -> bytes:
    part = parts[INTEGERS]
    count = part.view.header.count
    out = bytearray(count)
    part.decode_range(0, count, memoryview(out))
    return bytes(out)


def export_of(how: IntegerCoding, shape: tuple[int, int], words: bytes, steps: bytes) -> bytes:
    """A file of the weight w."""
    size = how.slice_elements * how.dtype.itemsize
    step_bytes = how.slice_elements // how.columns * how.dtype.itemsize
    parts = dict.fromkeys(how.parts, b"")
    for i in range(-(-len(words) // size)):
        piece = words[i * size : (i + 1) * size]
        made, _ = parts_of(how, piece, steps[i * step_bytes : (i + 1) * step_bytes])
        parts = {part: parts[part] + frame for part, frame in made.items()}
    return file_of(parts, export_metadata({"w": (shape, how)}))


def file_of(parts: Mapping[str, bytes], metadata: Mapping[str, str]) -> bytes:
    tensors = [(part_name("w", part), "U8", (len(data),)) for part, data in parts.items()]
    return new_header(tensors, metadata) + b"".join(parts.values())


def good_parts() -> dict[str, bytes]:
    return parts_of(HOW, WORDS, steps_of(DType.BF16, WORDS, 40, 7))[0]


def test_integers_take_about_their_entropy() -> None:
    words = matrix(DType.BF16, 256, 512)
    how = IntegerCoding(DType.BF16, 512)
    parts, _ = parts_of(how, words, steps_of(DType.BF16, words, 512, 12))
    part = open_part(how, INTEGERS, parts[INTEGERS], 256 * 512)
    counts = np.bincount(np.frombuffer(integers_in({INTEGERS: part}), np.uint8))
    shares = counts[counts > 0] / counts.sum()
    entropy = -(shares @ np.log2(shares))
    assert 8 * len(parts[INTEGERS]) / counts.sum() < entropy + 0.05


def test_every_byte_that_changes_is_noticed_and_the_weight_named() -> None:
    good = file_of(good_parts(), {"neuzip": json.dumps(document())})
    before = decoded(ExportFile(good, "a file"), "w")
    begin = 8 + int.from_bytes(good[:8], "little")
    for at in range(begin, len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1 + at % 255
        with pytest.raises(CodecError, match=r"^(a file: )?w: "):
            decoded(ExportFile(bytes(damaged), "a file"), "w")
    assert before == decoded(ExportFile(good, "a file"), "w")


def _based_on_a_tensor() -> bytes:
    data, base = bytes(range(240)), bytes(range(1, 241))
    spec = TensorSpec(blake3(data).digest(), DType.I8, 6, 40)
    plan = BasePlan((BaseSegment(blake3(base).digest(), DType.I8, 0, 240),), is_cast=False)
    return encode_frame(
        spec, FrameRange(0, 240, 6, 40), data, base=base, plan=plan, codec="fm_delta"
    )


@pytest.mark.parametrize(
    ("part", "frame", "message"),
    [
        (INTEGERS, lambda: frame_of(DType.U8, memoryview(bytes(240)), "raw", 1), "not 240 of I8"),
        (INTEGERS, lambda: frame_of(DType.I8, memoryview(bytes(239)), "raw", 1), "not 240 of I8"),
        (INTEGERS, _based_on_a_tensor, "has a tensor as base"),
        (STEPS, lambda: frame_of(DType.BF16, memoryview(bytes(10)), "raw", 1), "not 6 of BF16"),
        (STEPS, lambda: frame_of(DType.F16, memoryview(bytes(12)), "raw", 1), "not 6 of BF16"),
        (STEPS, lambda: frame_of(DType.BF16, memoryview(b"\0\x80" * 6), "raw", 1), "negative"),
        (STEPS, lambda: frame_of(DType.BF16, memoryview(b"\x80\x7f" * 6), "raw", 1), "infinite"),
    ],
)
def test_parts_that_no_encoder_writes_are_refused(part: str, frame: object, message: str) -> None:
    assert callable(frame)
    data = file_of(good_parts() | {part: frame()}, {"neuzip": json.dumps(document())})
    with pytest.raises(CorruptFrame, match=f"w: .*{message}"):
        decoded(ExportFile(data, "a file"), "w")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"form": "floats"}, "unknown form"),
        ({"form": 1}, "unknown form"),
        ({"bits": 3}, "has not exactly"),
        ({"dtype": "F64"}, "F64 is not coded as integers"),
        ({"dtype": "I8"}, "I8 is not coded as integers"),
        ({"shape": [1, MAX_COLUMNS + 1]}, "integers have 1 to"),
        ({"shape": [0, 40]}, "no elements"),
    ],
)
def test_metadata_that_breaks_a_limit_is_refused(changes: dict[str, object], message: str) -> None:
    data = file_of(good_parts(), {"neuzip": json.dumps(document(**changes))})
    with pytest.raises(InvalidSafetensors, match=f"w.*{message}"):
        ExportFile(data, "a file")


def test_an_encoder_refuses_what_it_cannot_code() -> None:
    steps = steps_of(DType.BF16, WORDS, 40, 7)
    with pytest.raises(InvalidInput, match="a step for each row"):
        encode_integers(HOW, memoryview(WORDS), steps[2:])
    with pytest.raises(InvalidInput, match="whole rows"):
        encode_integers(HOW, memoryview(WORDS)[2:], steps)
    with pytest.raises(InvalidInput, match="negative, infinite"):
        encode_integers(HOW, memoryview(WORDS), steps[2:] + b"\xc0\x7f")
    with pytest.raises(InvalidInput, match="1 elements are infinite"):
        encode_integers(HOW, memoryview(b"\xc0\x7f" + WORDS[2:]), steps)
    with pytest.raises(InvalidInput, match="read at 8 bits, not 3"):
        HOW.needed(3)

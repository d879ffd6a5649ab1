"""A lossless export gives back every bit of every element, whole or by ranges."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import DType, InvalidInput
from deltahub.codecs.exports.coding import (
    MANTISSA_BITS,
    SLICE_ELEMENTS,
    Coding,
    coding,
    encode_slice,
    lossless,
)
from deltahub.codecs.exports.file import ExportFile
from deltahub.codecs.reference import neuzip as reference
from support.codecs.deltas import LAST_FINITE, fine_tune, special_words
from support.codecs.exports import ROUNDED, coded, decoded, export_of, finite, weight
from support.codecs.kernels import every_kernel, running

FLOATS = [dtype for dtype in DType if dtype.is_float]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
rounded = pytest.mark.parametrize("dtype", ROUNDED, ids=lambda dtype: dtype.name)
LENGTHS = [1, 7, 8, 9, 511, 512, 513]


@every_kernel
@pytest.mark.parametrize(
    "dtype", [DType.BF16, DType.F16, DType.F8_E4M3, DType.F8_E5M2], ids=lambda dtype: dtype.name
)
def test_every_word_there_is_comes_back(kernels: str, dtype: DType) -> None:
    """NaNs with every payload, infinities, subnormal numbers, both zeros; among usual weights,
    because words alone would be stored raw.
    """
    every = np.arange(1 << 8 * dtype.itemsize, dtype=f"<u{dtype.itemsize}").tobytes()
    words = every + fine_tune(dtype, 200_000)[0]
    with running(kernels):
        assert coded(lossless(dtype), words) == words


@every_float
def test_every_special_word_comes_back(dtype: DType) -> None:
    words = special_words(dtype).tobytes() * 3 + fine_tune(dtype, 20_000)[0]
    assert coded(lossless(dtype), words) == words


@every_float
@given(data=st.data())
def test_any_words_come_back(dtype: DType, data: st.DataObject) -> None:
    size = dtype.itemsize * data.draw(st.integers(1, 100))
    words = data.draw(st.binary(min_size=size, max_size=size))
    assert coded(lossless(dtype), words) == words


@every_kernel
@rounded
def test_every_finite_word_comes_back_from_planes(kernels: str, dtype: DType) -> None:
    words = fine_tune(dtype, 3001)[0]
    if dtype.itemsize == 2:
        words += finite(dtype)
    most = MANTISSA_BITS[dtype]
    with running(kernels):
        for levels in ([0], [3], range(most), [0, most - 1]):
            assert coded(lossless(dtype, levels), words) == words


@rounded
@pytest.mark.parametrize("length", LENGTHS)
def test_fewer_bits_of_a_lossless_weight_are_the_highest_and_the_middle(
    dtype: DType, length: int
) -> None:
    words = fine_tune(dtype, length)[0]
    how, form = lossless(dtype, [0, 1, 3, 5]), reference.Form(dtype)
    for level in (0, 1, 3, 5):
        cut = form.write(form.read(words) & (-1 << (form.mantissa_bits - level)))
        fill = reference.fill_of(form, form.mantissa_bits, level)
        assert fill == 1 << (form.mantissa_bits - level - 1)
        assert coded(how, words, level) == reference.decode(form, cut, {}, fill)
    assert coded(how, words) == words


@every_float
@pytest.mark.parametrize("length", LENGTHS)
def test_a_weight_of_any_length_comes_back(dtype: DType, length: int) -> None:
    words = fine_tune(dtype, length)[0]
    file = ExportFile(export_of({"w": weight(lossless(dtype), words)}), "a file")
    assert decoded(file, "w") == words


SEAMS = [SLICE_ELEMENTS - 1, SLICE_ELEMENTS, SLICE_ELEMENTS + 1]


@pytest.mark.parametrize("length", SEAMS)
@pytest.mark.parametrize(
    "how",
    [lossless(DType.BF16), coding(DType.BF16, 3, 512, [0, 1]), lossless(DType.F8_E4M3)],
    ids=["lossless", "rounded", "F8"],
)
def test_the_seams_of_slices_do_not_show(how: Coding, length: int) -> None:
    some = fine_tune(how.dtype, 1 << 16)[0]
    size = how.dtype.itemsize
    words = (some * (length // (1 << 16) + 1))[: length * size]
    file = ExportFile(export_of({"w": weight(how, words)}), "a file")
    made = decoded(file, "w")
    if how.is_lossless:
        assert made == words
    else:
        # A slice has whole blocks, so that all the repeated pieces are rounded alike.
        piece = coded(how, some)
        whole = length // (1 << 16) * len(piece)
        assert made[:whole] == piece * (length // (1 << 16))
        assert made[whole:] == coded(how, words[whole:]) if whole < len(words) else True
    found = file.weights["w"]
    for low, high in ((length - 5, length), (SLICE_ELEMENTS - 9, min(length, SLICE_ELEMENTS + 1))):
        out = bytearray((high - low) * size)
        found.decode_range(low, high - low, memoryview(out))
        assert out == made[low * size : high * size]


@pytest.mark.parametrize(
    "how",
    [
        lossless(DType.BF16),
        lossless(DType.F64),
        lossless(DType.F16, [0, 2, 9]),
        coding(DType.BF16, 3, 0, [0, 1]),
        coding(DType.F32, 5, 16, [2]),
        coding(DType.F16, 0, 4096),
    ],
)  # fmt: skip
@given(data=st.data())
def test_a_range_is_what_lies_there_in_the_whole(how: Coding, data: st.DataObject) -> None:
    count, size = 300_000, how.dtype.itemsize
    file = ExportFile(export_of_large(how, count), "a file")
    found = file.weights["w"]
    level = data.draw(st.sampled_from(how.levels))
    whole = decoded(file, "w", level)
    ends = [0, 1, 7, 8, 9, 4095, 4096, 4097, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, count]
    places = st.sampled_from(ends) | st.integers(0, count)
    first, end = sorted([data.draw(places), data.draw(places)])
    out = bytearray((end - first) * size)
    found.decode_range(first, end - first, memoryview(out), level, data.draw(st.integers(1, 3)))
    assert out == whole[first * size : end * size]


FILES: dict[tuple[Coding, int], bytes] = {}


def export_of_large(how: Coding, count: int) -> bytes:
    if (how, count) not in FILES:
        words = fine_tune(how.dtype, count)[0]
        FILES[how, count] = export_of({"w": weight(how, words)})
    return FILES[how, count]


def test_what_is_no_range_or_level_of_a_weight_is_refused_by_its_name() -> None:
    how = coding(DType.BF16, 3, 0, [1])
    found = ExportFile(export_of({"a.b": weight(how, bytes(200))}), "a file").weights["a.b"]
    for first, count, size in ((-1, 2, 4), (0, 101, 202), (100, 1, 2), (0, -1, 0), (0, 10, 18)):
        with pytest.raises(InvalidInput, match=r"^a\.b: .* of 100$"):
            found.decode_range(first, count, memoryview(bytearray(size)))
    out = memoryview(bytearray(200))
    with pytest.raises(InvalidInput, match=r"^a\.b: .* read at 1, 3 mantissa bits, not 2"):
        found.decode_into(out, 2)
    with pytest.raises(InvalidInput, match="read at 1, 3"):
        found.size_bytes(7)
    found.decode_range(50, 0, memoryview(b""))


@rounded
def test_infinite_words_are_coded_lossless_at_one_level_or_refused(dtype: DType) -> None:
    """Rounded they would become finite; and a reader of fewer bits would fill up an infinity."""
    first = LAST_FINITE[dtype] + 1
    for word in (first, first + 1):
        words = word.to_bytes(dtype.itemsize, "little") + bytes(8 * dtype.itemsize)
        assert coded(lossless(dtype), words) == words
        for how in (lossless(dtype, [0]), coding(dtype, 3, 0), coding(dtype, 3, 8)):
            with pytest.raises(InvalidInput, match="1 elements are infinite or NaN"):
                encode_slice(how, memoryview(words))


def test_a_slice_has_a_whole_number_of_elements_up_to_its_most() -> None:
    for size in (0, 3, 2 * SLICE_ELEMENTS + 2):
        with pytest.raises(InvalidInput, match="a slice has 1 to 4194304 elements"):
            encode_slice(lossless(DType.BF16), memoryview(bytes(size)))


NO_CODINGS: dict[str, tuple[DType, int, tuple[int, ...], int]] = {
    "has no mantissa": (DType.I8, 0, (0,), 0),
    "has 7 mantissa bits, not 8": (DType.BF16, 8, (8,), 0),
    "has 7 mantissa bits, not -1": (DType.BF16, -1, (-1,), 0),
    "levels .* do not ascend to 3": (DType.BF16, 3, (), 0),
    "do not ascend": (DType.BF16, 3, (1, 1, 3), 0),
    "ascend to 3": (DType.BF16, 3, (0, 1), 0),
    "-1 is no number": (DType.BF16, 3, (-1, 3), 0),
    "F64 is coded lossless": (DType.F64, 52, (0, 52), 0),
    "F8_E5M2 is coded lossless": (DType.F8_E5M2, 1, (1,), 0),
    "a block of 4 elements": (DType.BF16, 3, (3,), 4),
    "a block of 8192 elements": (DType.BF16, 3, (3,), 8192),
    "a block of 24 elements": (DType.BF16, 3, (3,), 24),
    "its block is 0": (DType.BF16, 7, (7,), 512),
}


@pytest.mark.parametrize("message", list(NO_CODINGS))
def test_a_coding_that_no_encoder_may_choose_is_refused(message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Coding(*NO_CODINGS[message])


def test_a_reader_of_fewer_bits_needs_fewer_parts() -> None:
    how = coding(DType.BF16, 5, 512, [3, 0, 1, 1, 9])
    assert how.levels == (0, 1, 3, 5)
    assert how.parts == ("words", "scales", "m1", "m3", "m5")
    assert how.needed(0) == ("words", "scales")
    assert how.needed(3) == ("words", "scales", "m1", "m3")
    file = ExportFile(export_of({"w": weight(how, fine_tune(DType.BF16, 40_000)[0])}), "a file")
    sizes = [file.weights["w"].size_bytes(level) for level in how.levels]
    steps = [more - less for less, more in pairwise(sizes)]
    for bits, step in zip((1, 2, 2), steps, strict=True):
        assert 0 < step - 40_000 * bits // 8 < 200
    assert coding(DType.F32, 52, 0, [3]) == lossless(DType.F32, [3])
    assert lossless(DType.F8_E4M3, [1]).levels == (3,)

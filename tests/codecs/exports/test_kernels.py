"""All kernels round, pack, join and scale as the readable reference does, word for word."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import DType
from deltahub.codecs._native import block_scales, join_planes, pack_plane, round_words
from deltahub.codecs.exports.coding import MANTISSA_BITS, MAX_BLOCK, coding
from deltahub.codecs.reference import neuzip as reference
from deltahub.codecs.words import WORD_KINDS
from support.codecs.deltas import fine_tune, special_words
from support.codecs.exports import LARGEST, ROUNDED, coded, finite
from support.codecs.kernels import every_kernel, running
from support.codecs.processor_modes import MODES, in_mode

rounded = pytest.mark.parametrize("dtype", ROUNDED, ids=lambda dtype: dtype.name)
# Seams of blocks, of eights, of vectors, and of what a thread takes.
COUNTS = [1, 7, 8, 9, 31, 33, 511, 512, 513, 4097]


def words_of(dtype: DType, data: st.DataObject, count: int) -> bytes:
    """Finite words: special ones, subnormal ones and any others."""
    sign = 1 << (8 * dtype.itemsize - 1)
    special = [int(word) for word in special_words(dtype) if word & (sign - 1) <= LARGEST[dtype]]
    magnitudes = (
        st.sampled_from(special)
        | st.integers(0, LARGEST[dtype])
        | st.integers(0, 2 << MANTISSA_BITS[dtype])
    )
    words = magnitudes.flatmap(lambda word: st.sampled_from([word, word ^ sign]))
    drawn = data.draw(st.lists(words, min_size=count, max_size=count))
    return np.array(drawn, f"<u{dtype.itemsize}").tobytes()


def native_scales(dtype: DType, words: bytes, block: int) -> bytes:
    out = bytearray(-(-len(words) // dtype.itemsize // block))
    block_scales(WORD_KINDS[dtype], words, block, out)
    return bytes(out)


def native_rounded(
    dtype: DType, words: bytes, kept: int, scales: bytes | None, block: int
) -> bytes:
    out = bytearray(len(words))
    round_words(WORD_KINDS[dtype], words, kept, scales, block or MAX_BLOCK, out, 2)
    return bytes(out)


def native_scaled(dtype: DType, words: bytes, scales: bytes, block: int) -> bytes:
    out = bytearray(words)
    join_planes(WORD_KINDS[dtype], out, [], 0, scales, block, 2)
    return bytes(out)


@every_kernel
@rounded
@settings(max_examples=40)
@given(data=st.data())
def test_every_set_of_kernels_agrees_with_the_reference(
    kernels: str, dtype: DType, data: st.DataObject
) -> None:
    words = words_of(dtype, data, data.draw(st.integers(1, 70)))
    kept = data.draw(st.integers(0, MANTISSA_BITS[dtype] - 1))
    block = data.draw(st.sampled_from([0, 8, 16, 512]))
    form = reference.Form(dtype, block)
    with running(kernels):
        scales = native_scales(dtype, words, block) if block else None
        made = native_rounded(dtype, words, kept, scales, block)
    assert scales == (reference.scales_of(form, words) if block else None)
    assert made == reference.round_words(form, words, kept, scales)
    assert_joins(kernels, form, made, kept, scales, data)


def assert_joins(
    kernels: str, form: reference.Form, made: bytes, kept: int, scales: bytes | None,
    data: st.DataObject,
) -> None:  # fmt: skip
    """Planes of any widths come back, and so do words of fewer bits."""
    dtype, kind = form.dtype, WORD_KINDS[form.dtype]
    levels = sorted(data.draw(st.sets(st.integers(0, kept), min_size=1)) | {kept})
    level = data.draw(st.sampled_from(levels))
    m, count = MANTISSA_BITS[dtype], len(made) // dtype.itemsize
    cut = (1 << 8 * dtype.itemsize) - (1 << (m - levels[0]))
    planes = {}
    words = (np.frombuffer(made, f"<u{dtype.itemsize}").astype(np.int64) & cut).astype(
        f"<u{dtype.itemsize}"
    )
    with running(kernels):
        for low, high in pairwise(levels):
            plane = bytearray(-(-count * (high - low) // 8))
            pack_plane(kind, made, m - high, high - low, plane)
            assert plane == reference.pack(form, made, m - high, high - low)
            if high <= level:
                planes[m - high, high - low] = bytes(plane)
        out = bytearray(words.tobytes())
        fill = coding(dtype, kept, form.block, levels).fill(level)
        told = [(low, width, plane) for (low, width), plane in planes.items()]
        join_planes(kind, out, told, fill, scales, form.block or MAX_BLOCK, 1)
    assert fill == reference.fill_of(form, kept, level)
    assert out == reference.decode(form, words.tobytes(), planes, fill, scales)


@every_kernel
@rounded
@settings(max_examples=20)
@given(data=st.data())
def test_words_that_no_encoder_writes_join_to_the_same_finite_words(
    kernels: str, dtype: DType, data: st.DataObject
) -> None:
    """A stranger's part may have infinite words where a scale follows."""
    words = data.draw(st.binary(min_size=80, max_size=80))
    n_blocks = -(-80 // dtype.itemsize // 8)
    scales = data.draw(st.binary(min_size=n_blocks, max_size=n_blocks))
    with running(kernels):
        made = native_scaled(dtype, words, scales, 8)
    form = reference.Form(dtype, 8)
    assert made == reference.decode(form, words, {}, 0, scales)
    assert np.all(form.read(made) & (form.sign - 1) <= LARGEST[dtype])


def some_scales() -> list[int]:
    random = np.random.default_rng(0).integers(0, 256, 12).tolist()
    return sorted({0, 1, 2, 85, 127, 128, 129, 254, 255, *random})


@every_kernel
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=lambda dtype: dtype.name)
def test_every_finite_word_is_rounded_and_scaled_as_the_reference_does(
    kernels: str, dtype: DType
) -> None:
    words, form = finite(dtype), reference.Form(dtype, MAX_BLOCK)
    n_blocks = -(-len(words) // 2 // MAX_BLOCK)
    for scale in some_scales():
        scales = bytes([scale]) * n_blocks
        kept = scale % MANTISSA_BITS[dtype]
        with running(kernels):
            made = native_rounded(dtype, words, kept, scales, MAX_BLOCK)
            scaled = native_scaled(dtype, words, scales, MAX_BLOCK)
        assert made == reference.round_words(form, words, kept, scales)
        assert scaled == reference.decode(form, words, {}, 0, scales)


@every_kernel
@rounded
@pytest.mark.parametrize("mode", list(MODES))
def test_the_modes_of_the_processor_do_not_show(kernels: str, dtype: DType, mode: str) -> None:
    """Rounding divides doubles, and subnormal words are converted to doubles."""
    small = np.arange(3000, dtype=f"<u{dtype.itemsize}") << max(MANTISSA_BITS[dtype] - 10, 0)
    words = small.astype(f"<u{dtype.itemsize}").tobytes() + fine_tune(dtype, 3000)[0]
    for how in (coding(dtype, 3, 64, [0, 1]), coding(dtype, 2, 0)):
        expected = coded(how, words)
        with running(kernels), in_mode(mode):
            assert coded(how, words, threads=3) == expected


@every_kernel
@rounded
@pytest.mark.parametrize("count", COUNTS)
def test_seams_and_threads_do_not_show(kernels: str, dtype: DType, count: int) -> None:
    words = fine_tune(dtype, count)[0]
    how = coding(dtype, 5, 16, [0, 1, 3])
    form = reference.Form(dtype, 16)
    scales = reference.scales_of(form, words)
    made = reference.round_words(form, words, 5, scales)
    expected = reference.decode(form, made, {}, 0, scales)
    with running(kernels):
        assert coded(how, words, threads=2) == expected
        for level in (3, 1, 0):
            keep = -1 << (form.mantissa_bits - level)
            cut = form.write(form.read(made) & keep)
            fill = reference.fill_of(form, 5, level)
            assert coded(how, words, level) == reference.decode(form, cut, {}, fill, scales)


def wrong_calls() -> Iterator[tuple[str, object]]:
    kind, words, out = WORD_KINDS[DType.BF16], bytes(32), bytearray(32)
    yield "F32, F16 or BF16", lambda: round_words(0, words, 3, None, 8, out, 1)
    yield "F32, F16 or BF16", lambda: block_scales(WORD_KINDS[DType.U16], words, 8, bytearray(2))
    yield "not whole words", lambda: round_words(kind, words[1:], 3, None, 8, out, 1)
    yield "sizes differ", lambda: round_words(kind, words[2:], 3, None, 8, out, 1)
    for kept in (-1, 8):
        yield (
            "more mantissa bits",
            lambda kept=kept: round_words(kind, words, kept, None, 8, out, 1),
        )
    for block in (0, 4, 12, 8192):
        yield "a block of", lambda block=block: block_scales(kind, words, block, bytearray(2))
    yield "one scale for each", lambda: block_scales(kind, words, 8, bytearray(3))
    yield "one scale for each", lambda: round_words(kind, words, 3, bytes(1), 8, out, 1)
    for low, width in ((-1, 2), (0, 0), (6, 2), (0, 8)):
        yield (
            "no such mantissa bits",
            lambda low=low, width=width: pack_plane(kind, words, low, width, bytearray(4)),
        )
    yield "another size", lambda: pack_plane(kind, words, 0, 3, bytearray(7))
    yield "another size", lambda: join_planes(kind, out, [(0, 3, bytes(7))], 0, None, 8, 1)
    yield "no such mantissa bits", lambda: join_planes(kind, out, [], 128, None, 8, 1)
    yield "one scale for each", lambda: join_planes(kind, out, [], 0, bytes(3), 8, 1)


@pytest.mark.parametrize("at", range(len([*wrong_calls()])))
def test_sizes_that_do_not_fit_are_refused(at: int) -> None:
    message, call = [*wrong_calls()][at]
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()

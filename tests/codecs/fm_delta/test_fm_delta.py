"""fm_delta restores every bit, and frames are small if a fine-tune is close to its base."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    BY_ID,
    BlockMode,
    DType,
    FrameView,
    Geometry,
    TensorSpec,
    WrongBase,
    decode_frame,
    encode_frame,
    split_frames,
    tensor_id,
)
from deltahub.codecs._native import FmDeltaDecoder, FmDeltaEncoder
from deltahub.codecs.fm_delta.codec import BLOCK_ELEMENTS, plan
from deltahub.codecs.protocol import Effort
from deltahub.codecs.reference.fm_delta import Words, parse_prelude
from support.codecs.deltas import (
    block_table,
    decode,
    encode,
    fine_tune,
    modes,
    one_row,
    scaled_fine_tune,
    special_words,
    stored_bytes,
)
from support.codecs.frames import plan_on
from support.models.tiny_lora import RANK, merged_lora

dtypes = st.sampled_from(list(DType))
every_dtype = pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)
every_effort = pytest.mark.parametrize("effort", list(Effort), ids=lambda effort: effort.name)


@given(dtype=dtypes, count=st.integers(1, 300), seed=st.integers(0, 99), data=st.data())
def test_a_fine_tune_comes_back(dtype: DType, count: int, seed: int, data: st.DataObject) -> None:
    step = data.draw(st.sampled_from([0.0, 1e-7, 1e-4, 1.0, 1e9]))
    source, base = fine_tune(dtype, count, seed, step)
    geometry = one_row(dtype, count, data.draw(st.sampled_from([1, count])))
    assert decode(geometry, encode(geometry, source, base), base) == source


@given(dtype=dtypes, data=st.data())
def test_any_words_come_back_against_any_others(dtype: DType, data: st.DataObject) -> None:
    size = dtype.itemsize * data.draw(st.integers(1, 200))
    seed, base = data.draw(st.binary(min_size=16, max_size=16)), bytes(size)
    source = (seed * size)[:size]
    for left, right in ((source, base), (base, source), (source, source[::-1])):
        body = encode(one_row(dtype, size // dtype.itemsize), left, right)
        assert decode(one_row(dtype, size // dtype.itemsize), body, right) == left


@every_dtype
def test_every_special_word_comes_back_against_every_other(dtype: DType) -> None:
    """Repeated often, among words that hardly change, so that the block is coded."""
    words = special_words(dtype)
    filler = np.zeros(20_000, dtype=words.dtype)
    left = np.concatenate([filler, np.repeat(words, len(words))]).tobytes()
    right = np.concatenate([filler, np.tile(words, len(words))]).tobytes()
    count = len(left) // dtype.itemsize
    body = encode(one_row(dtype, count), left, right)
    assert modes(body) == [BlockMode.CODED]
    assert decode(one_row(dtype, count), body, right) == left


@every_dtype
@pytest.mark.parametrize(
    "count", [1, 31, 32, 33, 64, 1023, 1024, 1025, BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS]
)
def test_the_seams_of_a_block(dtype: DType, count: int) -> None:
    source, base = fine_tune(dtype, count)
    body = encode(one_row(dtype, count), source, base)
    assert decode(one_row(dtype, count), body, base) == source


@every_dtype
def test_blocks_of_unequal_size_come_back(dtype: DType) -> None:
    count = 2 * BLOCK_ELEMENTS + 1
    source, base = fine_tune(dtype, count)
    for n_blocks in (2, 3, 4):
        geometry = one_row(dtype, count, n_blocks)
        assert decode(geometry, encode(geometry, source, base), base) == source


def test_buffers_need_no_alignment() -> None:
    source, base = fine_tune(DType.F64, 1000)
    geometry = one_row(DType.F64, 1000)
    shifted = memoryview(b"x" + source)[1:], memoryview(b"xyz" + base)[3:]
    body = BY_ID["fm_delta"].encode(geometry, *shifted, Effort.DEFAULT, 1)
    assert modes(body) == [BlockMode.CODED]
    assert decode(geometry, body, base) == source


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_number_of_threads_does_not_show(threads: int) -> None:
    source, base = fine_tune(DType.BF16, 20 * 5000)
    geometry = Geometry(DType.BF16, 20, 5000, 1, 1)
    body = encode(geometry, source, base)
    assert encode(geometry, source, base, threads) == body
    assert decode(geometry, body, base, threads) == source


@every_effort
def test_every_effort_comes_back_and_is_recorded(effort: Effort) -> None:
    source, base = fine_tune(DType.BF16, 96 * 700)
    geometry = Geometry(DType.BF16, 96, 700, 30, 1)
    body = encode(geometry, source, base, effort=effort)
    assert body.effort == effort
    assert encode(geometry, source, base, 2, effort) == body
    assert decode(geometry, body, base) == source


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_of_rows_come_back(parts: int) -> None:
    geometry = Geometry(DType.F32, 40, 700, 1, parts)
    source, base = scaled_fine_tune(DType.F32, 40, 700)
    body = encode(geometry, source, base)
    assert set(modes(body)) == {BlockMode.CODED}
    assert decode(geometry, body, base, threads=2) == source


def test_a_block_that_equals_its_base_takes_no_bytes() -> None:
    source, base = fine_tune(DType.F32, 4000)
    source = base[:4000] + source[4000:8000] + base[8000:]
    geometry = one_row(DType.F32, 4000, 4)
    body = encode(geometry, source, base)
    expected = [BlockMode.UNCHANGED, BlockMode.CODED, BlockMode.UNCHANGED, BlockMode.UNCHANGED]
    assert modes(body) == expected
    assert decode(geometry, body, base) == source
    untouched = encode(geometry, base, base)
    assert stored_bytes(untouched) == 0


@every_dtype
def test_noise_is_kept_raw_without_tables(dtype: DType) -> None:
    random = np.random.default_rng(0)
    source, base = random.bytes(5000 * dtype.itemsize), random.bytes(5000 * dtype.itemsize)
    body = encode(one_row(dtype, 5000, 5), source, base)
    assert stored_bytes(body) <= len(source)
    assert decode(one_row(dtype, 5000, 5), body, base) == source


def test_a_coded_block_is_smaller_than_a_raw_one_even_if_others_are_noise() -> None:
    random = np.random.default_rng(0)
    source, base = fine_tune(DType.BF16, 50_000)
    source, base = source + random.bytes(10_000), base + random.bytes(10_000)
    geometry = one_row(DType.BF16, 55_000, 11)
    body = encode(geometry, source, base)
    assert modes(body) == [BlockMode.CODED] * 10 + [BlockMode.RAW]
    assert all(len(stored) < 10_000 for mode, stored in body.blocks if mode == BlockMode.CODED)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I32])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16, 32, 64])
def test_a_few_elements_never_take_more_than_themselves(dtype: DType, count: int) -> None:
    source, base = fine_tune(dtype, count)
    assert stored_bytes(encode(one_row(dtype, count), source, base)) <= len(source)


# In per cent of the fine-tune, for a step of 1e-4 on weights of 0.02. The published classes (sign
# and highest bit of the delta, the bits below raw) would take 22.7, 41.0 and 61.2 by their entropy;
# given the base's exponent 18.9, 36.9 and 59.1.
@pytest.mark.parametrize(
    ("dtype", "limit"), [(DType.BF16, 18.7), (DType.F16, 36.7), (DType.F32, 59.0)]
)
def test_a_fine_tune_is_small(dtype: DType, limit: float) -> None:
    source, base = fine_tune(dtype, 1 << 18, step=1e-4)
    body = encode(one_row(dtype, 1 << 18, 4), source, base)
    assert 100 * stored_bytes(body) / len(source) < limit


def test_rows_that_moved_far_and_rows_that_hardly_did_share_a_frame() -> None:
    far, base = fine_tune(DType.F32, 1 << 16, step=1e-4)
    near, _ = fine_tune(DType.F32, 1 << 16, step=1e-7)
    geometry = Geometry(DType.F32, 64, 1 << 11, 32, 1)
    # The same noise at two scales has low rank. Only the least effort does not search for that.
    body = encode(geometry, far + near, base + base, effort=Effort.FAST)
    (_, first), (_, second) = body.blocks
    assert len(second) < 0.7 * len(first)
    assert decode(geometry, body, base + base) == far + near


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F32], ids=lambda d: d.name)
def test_rows_and_columns_of_their_own_step_sizes_are_smaller_for_being_told_apart(
    dtype: DType,
) -> None:
    """The same differences as rows and columns, and as one row, which has no scales."""
    rows, columns = 256, 512
    source, base = scaled_fine_tune(dtype, rows, columns)
    scaled = encode(Geometry(dtype, rows, columns, rows, 1), source, base)
    flat = encode(one_row(dtype, rows * columns), source, base)
    a_third_of_a_bit_each = rows * columns // 24
    assert stored_bytes(scaled) < stored_bytes(flat) - a_third_of_a_bit_each
    assert decode(Geometry(dtype, rows, columns, rows, 1), scaled, base) == source
    model = parse_prelude(Words.of(dtype), rows, columns, scaled.prelude)
    assert model.rows is not None
    assert model.columns is not None


def test_a_merged_adapter_is_predicted() -> None:
    merged, before = merged_lora()
    rows, columns = before.shape
    adapter_bytes = 2 * RANK * (rows + columns)
    base = before.view(torch.uint8).numpy().tobytes()
    source = merged.to(torch.bfloat16).view(torch.uint8).numpy().tobytes()
    spec = TensorSpec(tensor_id(source), DType.BF16, rows, columns)
    (part,) = split_frames(spec)
    plan_of_base = plan_on(base, DType.BF16)
    fast, default, most = (
        encode_frame(spec, part, source, base, plan_of_base, "fm_delta", 1, effort)
        for effort in Effort
    )
    assert len(fast) > 4 * adapter_bytes
    assert len(default) < 2 * adapter_bytes
    assert len(most) < 1.02 * len(default)
    for frame, is_low_rank in ((fast, False), (default, True), (most, True)):
        assert decode_frame(frame, base) == source
        model = parse_prelude(Words.of(DType.BF16), rows, columns, FrameView.parse(frame).prelude)
        assert (model.low_rank is not None) == is_low_rank


@pytest.mark.parametrize("count", [1000, 1 << 16, 1 << 19])
@every_effort
def test_the_estimate_is_near_the_truth(count: int, effort: Effort) -> None:
    source, base = fine_tune(DType.BF16, count)
    geometry = one_row(DType.BF16, count, -(-count // BLOCK_ELEMENTS))
    body = encode(geometry, source, base, effort=effort)
    encoder = plan(geometry, memoryview(source), memoryview(base), effort)
    n_states = 40 * geometry.n_blocks  # bytes of states and guards, which estimates leave out
    assert encoder.estimated_bytes == pytest.approx(stored_bytes(body) - n_states, rel=0.04)


@pytest.mark.parametrize(
    ("rows", "columns", "left", "right", "floor"),
    [(4, 6, 8, 11, 5), (4, 6, 8, 0, 5), (4, 6, 40, 60, 5), (4, 6, 8, 12, 0), (4, 6, 8, 12, 255)],
)
def test_factors_that_do_not_fit_are_refused(
    rows: int, columns: int, left: int, right: int, floor: int
) -> None:
    source, base = fine_tune(DType.BF16, rows * columns)
    FmDeltaEncoder(3, source, base, rows, columns, 2, bytes(2 * 4), bytes(2 * 6), 5, False)
    with pytest.raises(ValueError, match=r"factors|floor"):
        FmDeltaEncoder(3, source, base, rows, columns, 2, bytes(left), bytes(right), floor, False)


@pytest.mark.parametrize("place", [(0, 0, 5, 6), (3, 0, 2, 6), (0, 3, 1, 4), (0, 7, 1, 1)])
def test_a_block_outside_of_its_frame_is_refused(place: tuple[int, int, int, int]) -> None:
    source, base = fine_tune(DType.BF16, 24)
    encoder = FmDeltaEncoder(3, source, base, 4, 6, 2, b"", b"", 0, False)
    with pytest.raises(ValueError, match="outside of its frame"):
        encoder.encode(source, base, *place)
    with pytest.raises(ValueError, match="rows x columns words"):
        encoder.encode(source, base, 0, 0, 2, 6)


def test_rows_whose_product_with_the_columns_wraps_are_refused() -> None:
    source, base = fine_tune(DType.BF16, 24)
    rows = (1 << 63) + 4
    with pytest.raises(ValueError, match="rows x columns words"):
        FmDeltaEncoder(3, source, base, rows, 6, 2, b"", b"", 0, False)
    prelude = FmDeltaEncoder(3, source, base, 4, 6, 2, b"", b"", 0, False).prelude
    decoder = FmDeltaDecoder(3, prelude, rows, 6)
    with pytest.raises(ValueError, match="rows x columns words"):
        decoder.decode(b"", base, bytearray(len(base)), 0, rows, 6)


def test_without_a_base_there_is_no_delta() -> None:
    source, base = fine_tune(DType.BF16, 10)
    geometry = one_row(DType.BF16, 10)
    codec = BY_ID["fm_delta"]
    with pytest.raises(WrongBase):
        codec.encode(geometry, memoryview(source), None, Effort.DEFAULT, 1)
    body = encode(geometry, source, base)
    table = block_table(geometry, [(20, BlockMode.RAW, 0)], has_base=True)
    with pytest.raises(WrongBase):
        codec.decode(
            geometry, 1, body.prelude, table, 0, 1, memoryview(source), None,
            memoryview(bytearray(20)), 1,
        )  # fmt: skip

"""The kernels and the readable reference write the same bytes and read each other's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import DType
from deltahub.codecs._native import FmDeltaDecoder, FmDeltaEncoder
from deltahub.codecs.fm_delta import BLOCK_ELEMENTS, WORD_KINDS
from deltahub.codecs.fm_delta_planning import plan_model, sample_positions
from deltahub.codecs.fm_delta_reference import (
    Words,
    decode_block,
    encode_block,
    parse_prelude,
    write_prelude,
)
from support.deltas import fine_tune, special_words

every_dtype = pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)


def assert_both_agree(dtype: DType, source: bytes, base: bytes) -> None:
    words, kind = Words.of(dtype), WORD_KINDS[dtype]
    model, estimated = plan_model(words, source, base)
    prelude = write_prelude(model, words)
    native = FmDeltaEncoder(kind, source, base)
    assert native.prelude == prelude
    assert native.estimated_bytes == estimated
    assert parse_prelude(prelude, words) == model

    stream = encode_block(words, model, source, base)
    native_stream = native.encode(source, base)
    if native_stream is None:
        assert len(stream) >= len(source)
    elif native_stream == b"":
        assert source == base
    else:
        assert native_stream == stream
    assert decode_block(words, model, stream, base) == source
    out = bytearray(len(source))
    FmDeltaDecoder(kind, prelude).decode(stream, base, out)
    assert out == source


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(list(DType)),
    count=st.integers(1, 120),
    seed=st.integers(0, 9),
    step=st.sampled_from([0.0, 1e-7, 1e-4, 1.0]),
)
def test_fine_tunes(dtype: DType, count: int, seed: int, step: float) -> None:
    assert_both_agree(dtype, *fine_tune(dtype, count, seed, step))


@settings(max_examples=40)
@given(dtype=st.sampled_from(list(DType)), count=st.integers(1, 60), data=st.data())
def test_any_words(dtype: DType, count: int, data: st.DataObject) -> None:
    size = count * dtype.itemsize
    source = data.draw(st.binary(min_size=size, max_size=size))
    base = data.draw(st.binary(min_size=size, max_size=size))
    assert_both_agree(dtype, source, base)


@every_dtype
def test_special_words(dtype: DType) -> None:
    words = special_words(dtype)
    assert_both_agree(
        dtype, np.repeat(words, len(words)).tobytes(), np.tile(words, len(words)).tobytes()
    )


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("count", [7, 8, 9, 1000, BLOCK_ELEMENTS + 1])
def test_seams(dtype: DType, count: int) -> None:
    if count > BLOCK_ELEMENTS and dtype is DType.F64:
        count = 5000
    assert_both_agree(dtype, *fine_tune(dtype, count))


def test_a_model_made_from_a_sample() -> None:
    """The native encoder looks at a part of a large frame, and at the same part as we do."""
    count = 150_000
    assert sum(1 for _ in sample_positions(count)) < count
    source, base = fine_tune(DType.BF16, count)
    words = Words.of(DType.BF16)
    model, estimated = plan_model(words, source, base)
    native = FmDeltaEncoder(WORD_KINDS[DType.BF16], source, base)
    assert native.prelude == write_prelude(model, words)
    assert native.estimated_bytes == estimated


def test_words_that_the_sample_missed_are_escaped() -> None:
    count = 150_000
    source, base = np.zeros(count, "<u4"), np.zeros(count, "<u4")
    source[::1000] = 1
    seen = set(sample_positions(count))
    missed = next(i for i in range(count - 1, 0, -1) if i not in seen)
    source[missed] = 0xDEADBEEF
    words = Words.of(DType.U32)
    model, _ = plan_model(words, source.tobytes(), base.tobytes())
    block = slice(missed - 500, missed + 500)
    stream = FmDeltaEncoder(WORD_KINDS[DType.U32], source.tobytes(), base.tobytes()).encode(
        source[block].tobytes(), base[block].tobytes()
    )
    assert stream == encode_block(words, model, source[block].tobytes(), base[block].tobytes())
    assert decode_block(words, model, stream, base[block].tobytes()) == source[block].tobytes()

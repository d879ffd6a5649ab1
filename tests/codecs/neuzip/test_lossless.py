"""neuzip_lossless restores every float; blocks are small if exponents are few, else raw."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import BlockMode, DType, EncodedBody, FrameView, Geometry, decode_frame
from deltahub.codecs._native import NeuzipDecoder, NeuzipEncoder, estimate_floats
from deltahub.codecs.neuzip.lossless import BLOCK_ELEMENTS
from deltahub.codecs.reference.neuzip_lossless import parse_prelude
from deltahub.codecs.reference.words import Words
from deltahub.codecs.words import WORD_KINDS
from support.codecs.deltas import (
    decode,
    encode_alone,
    fine_tune,
    modes,
    one_row,
    special_words,
    stored_bytes,
)
from support.codecs.frames import make_frame
from support.models.tiny_models import base as trained

FLOATS = [dtype for dtype in DType if dtype.is_float]
floats = st.sampled_from(FLOATS)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)


def zero_bits_of(dtype: DType, body: EncodedBody) -> int:
    return parse_prelude(Words.of(dtype), body.prelude).zero_bits


@given(dtype=floats, count=st.integers(1, 300), seed=st.integers(0, 99), data=st.data())
def test_weights_come_back(dtype: DType, count: int, seed: int, data: st.DataObject) -> None:
    _, words = fine_tune(dtype, count, seed)
    geometry = one_row(dtype, count, data.draw(st.sampled_from([1, count])))
    assert decode(geometry, encode_alone(geometry, words), None) == words


@given(dtype=st.sampled_from(list(DType)), data=st.data())
def test_any_words_come_back(dtype: DType, data: st.DataObject) -> None:
    size = dtype.itemsize * data.draw(st.integers(1, 200))
    seed = data.draw(st.binary(min_size=16, max_size=16))
    words = (seed * size)[:size]
    geometry = one_row(dtype, size // dtype.itemsize)
    assert decode(geometry, encode_alone(geometry, words), None) == words


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F8_E4M3, DType.F8_E5M2])
def test_every_word_there_is_comes_back(dtype: DType) -> None:
    """All bit patterns, among words of one exponent so that the block is coded."""
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    every = np.arange(1 << 8 * dtype.itemsize).astype(unsigned)
    usual = np.random.default_rng(0).choice(every[len(every) // 4 :][: len(every) // 64], 1 << 18)
    words = np.concatenate([every, usual]).tobytes()
    geometry = one_row(dtype, len(words) // dtype.itemsize)
    body = encode_alone(geometry, words)
    assert modes(body) == [BlockMode.CODED]
    assert zero_bits_of(dtype, body) == 0
    assert decode(geometry, body, None) == words


@every_float
def test_every_special_word_comes_back(dtype: DType) -> None:
    special = special_words(dtype)
    _, usual = fine_tune(dtype, 20_000)
    words = np.concatenate([np.tile(special, 3), np.frombuffer(usual, special.dtype)]).tobytes()
    geometry = one_row(dtype, len(words) // dtype.itemsize)
    body = encode_alone(geometry, words)
    assert modes(body) == [BlockMode.CODED]
    assert decode(geometry, body, None) == words


@every_float
@pytest.mark.parametrize("count", [1, 31, 32, 33, 1023, 1025, BLOCK_ELEMENTS])
def test_the_seams_of_a_block(dtype: DType, count: int) -> None:
    _, words = fine_tune(dtype, count)
    body = encode_alone(one_row(dtype, count), words)
    assert decode(one_row(dtype, count), body, None) == words


@every_float
def test_blocks_of_unequal_size_come_back_and_threads_do_not_show(dtype: DType) -> None:
    count = 30_001
    _, words = fine_tune(dtype, count)
    for n_blocks in (2, 3, 4):
        geometry = one_row(dtype, count, n_blocks)
        body = encode_alone(geometry, words)
        assert encode_alone(geometry, words, threads=3) == body
        assert decode(geometry, body, None, threads=2) == words


@pytest.mark.parametrize("zero_bits", [1, 13, 16, 22, 23])
def test_low_bits_that_are_zero_everywhere_take_no_room(zero_bits: int) -> None:
    """16: BF16 weights stored as F32. 23: powers of two."""
    count = 1 << 14
    random = np.random.default_rng(1)
    values = np.frombuffer(fine_tune(DType.F32, count)[1], "<u4")
    cut = values >> zero_bits << zero_bits
    cut ^= (random.integers(0, 2, count) << 31).astype("<u4")
    body = encode_alone(one_row(DType.F32, count), cut.tobytes())
    assert modes(body) == [BlockMode.CODED]
    assert zero_bits_of(DType.F32, body) == zero_bits
    raw_bytes = count * (24 - zero_bits) // 8
    assert raw_bytes < stored_bytes(body) < raw_bytes + count * 3 // 8
    assert decode(one_row(DType.F32, count), body, None) == cut.tobytes()


@pytest.mark.parametrize(("dtype", "shift"), [(DType.BF16, 0), (DType.F16, 0), (DType.F32, 16)])
def test_digits_that_can_be_told_are_coded_with_the_exponent(dtype: DType, shift: int) -> None:
    """If all mantissas begin with 11, these bits take no space. Nor do trailing zero bits."""
    count = 1 << 14
    words = Words.of(dtype)
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    values = np.frombuffer(fine_tune(dtype, count)[1], unsigned) >> shift << shift
    known = (values | 3 << (words.mantissa_bits - 2)).astype(unsigned).tobytes()
    body = encode_alone(one_row(dtype, count), known)
    model = parse_prelude(words, body.prelude)
    assert (model.n_leading, model.zero_bits) == (2, shift)
    n_raw = words.mantissa_bits + 1 - 2 - shift
    assert count * n_raw // 8 < stored_bytes(body) < count * (n_raw + 3) // 8
    assert decode(one_row(dtype, count), body, None) == known


def test_digits_of_which_nothing_is_known_stay_raw() -> None:
    count = 1 << 12
    mantissas = np.random.default_rng(0).integers(0, 1 << 7, count)
    words = (mantissas | 120 << 7).astype("<u2").tobytes()
    body = encode_alone(one_row(DType.BF16, count), words)
    assert parse_prelude(Words.of(DType.BF16), body.prelude).n_leading == 0
    assert decode(one_row(DType.BF16, count), body, None) == words


@pytest.mark.parametrize("rare", [0x0001, 0x8001, 0x7F80, 0xFFC1, 0x3F81, 0xBF80])
def test_rare_exponents_are_escaped_rather_than_given_states(rare: int) -> None:
    """Symbols of both signs: exponents from 128 on, and exponents below."""
    _, usual = fine_tune(DType.BF16, 1 << 16)
    words = np.frombuffer(usual, "<u2").copy()
    words[::8192] = rare
    count = len(words)
    body = encode_alone(one_row(DType.BF16, count), words.tobytes())
    model = parse_prelude(Words.of(DType.BF16), body.prelude)
    symbol = 2 + ((rare & 0x7FFF) >> model.n_low)
    assert model.n_leading == 2
    assert model.table.frequencies[symbol] == 0
    escape = symbol - 2 >= 1 << (8 + model.n_leading - 1)
    assert model.table.frequencies[escape] > 0
    assert decode(one_row(DType.BF16, count), body, None) == words.tobytes()


def test_zeros_take_their_signs_alone() -> None:
    count = 1 << 14
    words = bytes(2 * count)
    body = encode_alone(one_row(DType.BF16, count), words)
    assert count // 8 < stored_bytes(body) < count // 8 + 64
    assert decode(one_row(DType.BF16, count), body, None) == words


def test_more_exponents_than_a_table_holds_are_kept_raw() -> None:
    """F64 has 2,046 finite exponents, a table 1,024 states."""
    few = np.random.default_rng(0).integers(500, 500 + 1024, 8000).astype("<u8") << 52
    many = np.random.default_rng(0).integers(1, 2047, 8000).astype("<u8") << 52
    for words, expected in ((few, BlockMode.CODED), (many, BlockMode.RAW)):
        geometry = one_row(DType.F64, len(words))
        body = encode_alone(geometry, words.tobytes())
        assert modes(body) == [expected]
        assert decode(geometry, body, None) == words.tobytes()
    with pytest.raises(ValueError, match="more exponents"):
        NeuzipEncoder(WORD_KINDS[DType.F64], many.tobytes())


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if not dtype.is_float])
def test_integers_are_kept_raw(dtype: DType) -> None:
    words = bytes(800)
    geometry = one_row(dtype, 800 // dtype.itemsize)
    body = encode_alone(geometry, words)
    assert (modes(body), body.prelude) == ([BlockMode.RAW], b"")
    assert decode(geometry, body, None) == words
    with pytest.raises(ValueError, match="integers"):
        NeuzipEncoder(WORD_KINDS[dtype], words)
    with pytest.raises(ValueError, match="integers"):
        NeuzipDecoder(WORD_KINDS[dtype], encode_alone(one_row(DType.F32, 200), words).prelude)


@every_float
def test_noise_is_kept_raw_without_a_table(dtype: DType) -> None:
    words = np.random.default_rng(0).bytes(5000 * dtype.itemsize)
    geometry = one_row(dtype, 5000, 5)
    body = encode_alone(geometry, words)
    assert stored_bytes(body) <= len(words)
    assert decode(geometry, body, None) == words


@every_float
@pytest.mark.parametrize("count", [1, 2, 8, 32, 64, 128])
def test_a_few_elements_never_take_more_than_themselves(dtype: DType, count: int) -> None:
    _, words = fine_tune(dtype, count)
    assert stored_bytes(encode_alone(one_row(dtype, count), words)) <= len(words)


# Per cent of the words' bytes. Trained exponents have about 2.6 bits of entropy, the next two
# mantissa bits 1.93. So BF16 takes (2.6 + 1.93 + 6) / 16.
@pytest.mark.parametrize(
    ("dtype", "name", "limit"),
    [(DType.BF16, torch.bfloat16, 66.2), (DType.F16, torch.float16, 85.0),
     (DType.F32, torch.float32, 83.2)],
)  # fmt: skip
def test_trained_weights_are_small(dtype: DType, name: torch.dtype, limit: float) -> None:
    for tensor in ("up.weight", "down.weight", "embedding.weight", "head.weight"):
        weights = trained()[tensor].to(name).contiguous()
        words = weights.view(torch.uint8).numpy().tobytes()
        rows, columns = weights.shape
        body = encode_alone(Geometry(dtype, rows, columns, rows, 1), words)
        assert 100 * stored_bytes(body) / len(words) < limit, tensor


def test_the_estimate_is_near_the_truth() -> None:
    for count in (1000, 1 << 17):
        _, words = fine_tune(DType.BF16, count)
        estimated = NeuzipEncoder(WORD_KINDS[DType.BF16], words).estimated_bytes
        true = stored_bytes(encode_alone(one_row(DType.BF16, count), words)) - 40
        assert estimated == pytest.approx(true, rel=0.02)


@every_float
@pytest.mark.parametrize("kept_bits", [0, 3, 64])
def test_no_blocks_take_less_than_the_least_that_was_told(dtype: DType, kept_bits: int) -> None:
    """For words that differ a lot, and for words that take fewer bits raw than coded."""
    rng = np.random.default_rng(kept_bits)
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    words = np.frombuffer(fine_tune(dtype, 30_000)[1], unsigned).copy()
    some = rng.random(len(words)) < 0.3
    noise = rng.integers(0, 256, (len(words), dtype.itemsize), np.uint8).view(unsigned)[:, 0]
    words[some] = noise[some] >> max(8 * dtype.itemsize - kept_bits - 1, 0)
    words[:10_000] = words[0]
    try:
        estimated, least = estimate_floats(WORD_KINDS[dtype], words.tobytes())
    except ValueError:  # more exponents than a table holds
        assert (dtype, kept_bits) == (DType.F64, 64)
        return
    assert estimated == NeuzipEncoder(WORD_KINDS[dtype], words.tobytes()).estimated_bytes
    assert estimated < 3 * least
    for n_blocks in (1, 3, 100):
        body = encode_alone(one_row(dtype, len(words), n_blocks), words.tobytes())
        assert body.blocks.size_bytes >= least


def test_a_frame_needs_no_base() -> None:
    _, words = fine_tune(DType.BF16, 4000)
    frame = make_frame("neuzip_lossless", DType.BF16, 40, 100, words, b"")
    header = FrameView.parse(frame).header
    assert (header.codec, header.codec_version, header.base) == ("neuzip_lossless", 1, None)
    assert decode_frame(frame) == words


def test_sizes_that_are_no_words_are_refused() -> None:
    _, words = fine_tune(DType.F32, 100)
    kind = WORD_KINDS[DType.F32]
    for size in (0, 399):
        with pytest.raises(ValueError, match="whole number of words"):
            NeuzipEncoder(kind, words[:size])
    encoder = NeuzipEncoder(kind, words)
    with pytest.raises(ValueError, match="whole number of words"):
        encoder.encode(words[:-1])
    decoder = NeuzipDecoder(kind, encoder.prelude)
    stream = encoder.encode(words)
    for size in (0, 399, 401, 404, 396):
        with pytest.raises(ValueError, match=r"whole number of words|no encoder"):
            decoder.decode(stream, bytearray(size))
    with pytest.raises(ValueError, match="no such kind"):
        NeuzipEncoder(10, words)

"""The readable reference of neuzip_lossless: floats come back, and faults are refused."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import CorruptFrame, DType, InvalidInput
from deltahub.codecs.reference.coder import guarded
from deltahub.codecs.reference.neuzip_lossless import (
    MAX_LEADING_BITS,
    Model,
    alphabet,
    block_values,
    decode_block,
    encode_block,
    parse_prelude,
    write_prelude,
)
from deltahub.codecs.reference.words import Words
from support.codecs.deltas import fine_tune, special_words
from support.codecs.reference_models import table_for, tables_for

FLOATS = [dtype for dtype in DType if dtype.is_float]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)


def model_for(
    dtype: DType, source: bytes, zero_bits: int = 0, table_log: int = 8, n_leading: int = 0
) -> Model:
    words = Words.of(dtype)
    symbols = alphabet(words, zero_bits, n_leading)
    table = table_for(Counter(), len(symbols.symbols), table_log)
    model = Model(words, zero_bits, table, n_leading)
    (table,) = tables_for(symbols, [block_values(model, source)], 1, table_log)
    return replace(model, table=table)


def assert_comes_back(dtype: DType, source: bytes, model: Model) -> None:
    assert parse_prelude(model.words, write_prelude(model)) == model
    assert decode_block(model, encode_block(model, source), len(source) // dtype.itemsize) == source


@settings(max_examples=30)
@given(
    dtype=st.sampled_from(FLOATS),
    count=st.integers(1, 150),
    seed=st.integers(0, 9),
    table_log=st.integers(7, 10),
)
def test_weights_come_back(dtype: DType, count: int, seed: int, table_log: int) -> None:
    source, _ = fine_tune(dtype, count, seed)
    assert_comes_back(dtype, source, model_for(dtype, source, table_log=table_log))


@settings(max_examples=25)
@given(dtype=st.sampled_from(FLOATS), count=st.integers(1, 60), data=st.data())
def test_any_words_come_back_through_any_table(
    dtype: DType, count: int, data: st.DataObject
) -> None:
    size = count * dtype.itemsize
    source = data.draw(st.binary(min_size=size, max_size=size))
    other = data.draw(st.binary(min_size=size, max_size=size))
    words = Words.of(dtype)
    most = min(3, words.mantissa_bits, MAX_LEADING_BITS - words.exponent_bits)
    n_leading = data.draw(st.integers(0, most))
    assert_comes_back(dtype, source, model_for(dtype, other, n_leading=n_leading))


@every_float
def test_special_words_come_back(dtype: DType) -> None:
    source = special_words(dtype).tobytes() * 3
    assert_comes_back(dtype, source, model_for(dtype, source))


@every_float
def test_words_with_zeros_at_the_end_are_coded_without_them(dtype: DType) -> None:
    words = Words.of(dtype)
    zero_bits = words.mantissa_bits
    source, _ = fine_tune(dtype, 100)
    rounded = words.write([word >> zero_bits << zero_bits for word in words.read(source)])
    model = model_for(dtype, rounded, zero_bits)
    assert_comes_back(dtype, rounded, model)
    plain = encode_block(model_for(dtype, rounded), rounded)
    saved = 8 * (len(plain) - len(encode_block(model, rounded)))
    assert saved == pytest.approx(100 * zero_bits, abs=16)
    with pytest.raises(InvalidInput, match="not zero"):
        encode_block(model, words.write([1]))


def test_an_exponent_costs_about_its_entropy() -> None:
    source, _ = fine_tune(DType.BF16, 4000)
    words = Words.of(DType.BF16)
    counts = Counter(words.exponent(word) for word in words.read(source))
    bits = sum(count * math.log2(4000 / count) for count in counts.values()) + 8 * 4000
    stream = encode_block(model_for(DType.BF16, source, table_log=10), source)
    assert bits < 8 * len(stream) < 1.02 * bits


SOURCE, _ = fine_tune(DType.BF16, 60)
GOOD = model_for(DType.BF16, SOURCE, table_log=7)


def test_a_damaged_prelude_is_refused_or_is_another() -> None:
    prelude = write_prelude(GOOD)
    for data in [*(prelude[:length] for length in range(len(prelude))), prelude + b"\0"]:
        with pytest.raises(CorruptFrame):
            parse_prelude(GOOD.words, data)
    n_refused = 0
    for bit in range(8 * len(prelude)):
        changed = bytearray(prelude)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            model = parse_prelude(GOOD.words, changed)
        except CorruptFrame:
            n_refused += 1
        else:
            assert write_prelude(model) == changed
    assert n_refused > 4 * len(prelude)


def test_a_damaged_block_is_refused() -> None:
    block = encode_block(GOOD, SOURCE)
    damaged = [block[:length] for length in range(len(block))]
    damaged += [block + tail for tail in (b"\0", b"\1", b"\xff")]
    for bit in range(8 * len(block)):
        changed = bytearray(block)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    n_refused = 0
    for data in damaged:
        with pytest.raises(CorruptFrame, match="the guard does not match"):
            decode_block(GOOD, data, 60)
        # With a valid guard, as an attacker would send it: refused, or other words.
        try:
            assert decode_block(GOOD, guarded(data[4:]), 60) != SOURCE or data[4:] == block[4:]
        except CorruptFrame:
            n_refused += 1
    assert n_refused > len(damaged) // 4
    for n_words in (59, 61):
        with pytest.raises(CorruptFrame):
            decode_block(GOOD, block, n_words)


@pytest.mark.parametrize(
    ("fault", "model"),
    [
        ("2\\^6 states", replace(GOOD, table=replace(GOOD.table, table_log=6))),
        ("2\\^11 states", replace(GOOD, table=replace(GOOD.table, table_log=11))),
        ("8 zero bits", replace(GOOD, zero_bits=8)),
        ("63 zero bits", replace(GOOD, zero_bits=63)),
        ("8 leading bits in every mantissa", replace(GOOD, n_leading=8)),
        ("4 leading bits in every mantissa", replace(GOOD, n_leading=4)),
        ("1 leading bits in every mantissa", replace(GOOD, n_leading=1, zero_bits=7)),
    ],
)
def test_a_faulty_prelude_is_refused(fault: str, model: Model) -> None:
    with pytest.raises(CorruptFrame, match=fault):
        parse_prelude(GOOD.words, write_prelude(model))


def test_integers_have_no_exponent() -> None:
    with pytest.raises(CorruptFrame, match="floats only"):
        parse_prelude(Words.of(DType.I16), write_prelude(GOOD))

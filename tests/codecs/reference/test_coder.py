"""The coder of the readable reference: tables, symbols and streams are read back equal."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import CorruptFrame, InvalidInput
from deltahub.codecs.reference.bits import BitReader, write_fields
from deltahub.codecs.reference.coder import (
    N_LANES,
    Alphabet,
    Coder,
    Context,
    Table,
    ValueSequence,
    read_table,
    table_fields,
)
from deltahub.codecs.reference.fm_delta_model import ALPHABET
from deltahub.codecs.reference.neuzip_lossless import alphabet
from deltahub.codecs.reference.words import Words
from support.codecs.reference_models import tables_for

NEUZIP = alphabet(Words(16, 8), 0)
every_alphabet = pytest.mark.parametrize("alphabet", [ALPHABET, NEUZIP], ids=["fm_delta", "neuzip"])


def table_of(*used: tuple[int, int], table_log: int = 7, n_symbols: int = 82) -> Table:
    """A table with these (symbol, frequency)."""
    frequencies = [0] * n_symbols
    for symbol, frequency in used:
        frequencies[symbol] = frequency
    return Table(table_log, tuple(frequencies))


@st.composite
def tables(draw: st.DrawFn, alphabet: Alphabet) -> Table:
    table_log = draw(st.integers(7, 10))
    size = 1 << table_log
    cuts = draw(st.sets(st.integers(1, size - 1), max_size=len(alphabet.symbols) - 1))
    parts = [right - left for left, right in pairwise([0, *sorted(cuts), size])]
    symbols = draw(st.permutations(range(len(alphabet.symbols))))[: len(parts)]
    used = zip(symbols, parts, strict=True)
    return table_of(*used, table_log=table_log, n_symbols=len(alphabet.symbols))


@every_alphabet
@settings(max_examples=25)
@given(data=st.data())
def test_a_table_comes_back_from_its_fields(alphabet: Alphabet, data: st.DataObject) -> None:
    table = data.draw(tables(alphabet))
    reader = BitReader(write_fields(table_fields(table, alphabet.length_distance)))
    assert read_table(reader, table.table_log, alphabet) == table
    assert reader.take_rest() == b""


@settings(max_examples=20)
@given(data=st.data())
def test_each_state_can_follow_each_symbol_in_one_way(data: st.DataObject) -> None:
    table = data.draw(tables(ALPHABET))
    ways: dict[tuple[int, int], int] = {}
    for before, state in enumerate(table.states):
        for low in range(1 << state.n_bits):
            assert (state.symbol, state.next_state + low) not in ways
            ways[state.symbol, state.next_state + low] = before
    used = [symbol for symbol, frequency in enumerate(table.frequencies) if frequency]
    assert len(ways) == len(used) << table.table_log
    assert all(table.state_before(*way) == before for way, before in ways.items())


@pytest.mark.parametrize("shift", [0, 1, 2, 8, 15])
def test_a_number_has_one_symbol_whose_raw_digits_are_its_low_bits(shift: int) -> None:
    used = (1,) * len(ALPHABET.symbols)
    for number in range(-(1 << 15), 1 << 15, 7):
        symbol = ALPHABET.symbol(number, used, shift, 16)
        raw_bits = ALPHABET.raw_bits(symbol, shift, 16)
        assert (ALPHABET.symbols[symbol][0] << raw_bits) + number % (1 << raw_bits) == number
        assert symbol % 2 == (number < 0)
        assert (symbol < 2) == (not -(16 << 12) <= number >> shift < 16 << 12)


@st.composite
def sequences(draw: st.DrawFn) -> ValueSequence:
    bits = draw(st.sampled_from([8, 16, 32, 64]))
    half = 1 << (bits - 1)
    number = st.integers(-9, 9) | st.integers(-half, half - 1)
    values = draw(st.lists(number, max_size=70))
    context = st.builds(Context, st.integers(0, 1), st.integers(0, bits - 1))
    contexts = draw(st.lists(context, min_size=len(values), max_size=len(values)))
    return ValueSequence(bits, contexts, values)


@settings(max_examples=30)
@given(coded=st.lists(sequences(), max_size=4), table_log=st.integers(7, 10))
def test_sequences_come_back_from_their_stream(coded: list[ValueSequence], table_log: int) -> None:
    coder = Coder(ALPHABET, tables_for(ALPHABET, coded, 2, table_log))
    stream = coder.encode(coded)
    reader = coder.open(stream)
    for sequence in coded:
        assert reader.take_sequence(sequence.bits, sequence.contexts) == sequence.values
    reader.finish()


def test_every_sequence_begins_at_the_first_lane() -> None:
    """A value's lane follows from its place in its sequence: both values use lane 0."""
    coder = Coder(ALPHABET, (table_of((2, 64), (4, 64)),))
    one = ValueSequence(16, [Context(0, 0)], [1])
    text = bin(int.from_bytes(coder.encode([one, one]), "little"))[3:]
    states = [int(text[7 * lane : 7 * lane + 7], 2) for lane in range(N_LANES)]
    assert states[0] != 0
    assert states[1:] == [0] * (N_LANES - 1)
    assert len(text) == 7 * N_LANES + 2  # each value reads one bit


def test_a_table_of_one_symbol_takes_no_digits() -> None:
    coder = Coder(ALPHABET, (table_of((2, 128)),))
    stream = coder.encode([ValueSequence(16, [Context(0, 0)] * 1000, [0] * 1000)])
    assert int.from_bytes(stream, "little") == 1 << 7 * N_LANES


def test_a_number_without_symbol_and_escape_is_the_callers_fault() -> None:
    coder = Coder(ALPHABET, (table_of((2, 127), (1, 1)),))
    coder.encode([ValueSequence(16, [Context(0, 0)] * 2, [0, -5])])
    with pytest.raises(InvalidInput, match="5 has no symbol"):
        coder.encode([ValueSequence(16, [Context(0, 0)], [5])])


# Stored lengths: bits 1 and a bit 0 for 0, -1, +1, -2, +2 ..., then the rest of the frequency.
NONE = "0"  # the length of the symbol two before
FAULTY_TABLES = {
    "beyond the sum": "11111111111111110 1111111 11111111111111110 0000000",
    "below the sum": NONE * 82,
    "a length of nine bits in 128 states": "111111111111111110 00000000",
    "a length of more than all bits": "1" * 18 + "0" + "00000000",
    "a length below zero": "10",
    "unary without an end": "1" * 99,
    "cut off": "11111111111111",
}


@pytest.mark.parametrize("fault", list(FAULTY_TABLES))
def test_a_faulty_table_is_refused(fault: str) -> None:
    text = FAULTY_TABLES[fault].replace(" ", "")
    data = write_fields([(int(digit), 1) for digit in text])
    with pytest.raises(CorruptFrame):
        read_table(BitReader(data), 7, ALPHABET)


def test_a_table_as_it_is_told() -> None:
    """128 = 64 + 32 + 31 + 1: lengths 7, 6, then 5 after the 7, then 1 after the 6."""
    text = "1" * 14 + "0" + "000000" + "1" * 12 + "0" + "00000" + "1110" + "1111" + "1" * 9 + "0"
    table = read_table(BitReader(write_fields([(int(digit), 1) for digit in text])), 7, ALPHABET)
    assert table.frequencies == (64, 32, 31, 1, *[0] * 78)


GOOD = Coder(ALPHABET, (table_of((0, 1), (1, 1), (2, 62), (3, 32), (4, 32)),))
CONTEXTS = [Context(0, 1)] * 40
VALUES = [0, 1, -1, 2, 3, -2, 1000, -1000] * 5


def read_all(stream: bytes) -> list[int]:
    reader = GOOD.open(stream)
    values = reader.take_sequence(16, CONTEXTS)
    reader.finish()
    return values


def stream_of(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def test_a_damaged_stream_is_refused_or_is_another() -> None:
    stream = GOOD.encode([ValueSequence(16, CONTEXTS, VALUES)])
    assert read_all(stream) == VALUES
    damaged = [stream[:length] for length in range(len(stream))]
    damaged += [stream + tail for tail in (b"\0", b"\1", stream)]
    for bit in range(8 * len(stream)):
        changed = bytearray(stream)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    n_refused = 0
    for data in damaged:
        try:
            assert read_all(data) != VALUES
        except CorruptFrame:
            n_refused += 1
    assert n_refused > len(damaged) // 2


@pytest.mark.parametrize(
    ("fault", "stream"),
    [
        ("has no end", b""),
        ("has no end", b"\0"),
        ("has no end", b"\1\0"),
        ("ends early", b"\1"),
        ("ends early", b"\xff" * 28),
    ],
)
def test_a_stream_without_its_digits_is_refused(fault: str, stream: bytes) -> None:
    with pytest.raises(CorruptFrame, match=fault):
        read_all(stream)


def test_digits_left_over_are_refused() -> None:
    number = int.from_bytes(GOOD.encode([ValueSequence(16, CONTEXTS, VALUES)]), "little")
    for digit in (0, 1):
        with pytest.raises(CorruptFrame, match="goes on"):
            read_all(stream_of(2 * number + digit))


def test_a_lane_that_ends_in_another_state_is_refused() -> None:
    """Lanes without values must begin in state 0, lanes with values must end there."""
    few = ValueSequence(16, CONTEXTS[:8], VALUES[:8])
    number = int.from_bytes(GOOD.encode([few]), "little")
    n_refused = 0
    for lane in range(8, N_LANES):
        changed = stream_of(number ^ 1 << (number.bit_length() - 1 - 7 * (lane + 1)))
        reader = GOOD.open(changed)
        assert reader.take_sequence(16, few.contexts) == few.values
        with pytest.raises(CorruptFrame, match="another state"):
            reader.finish()
        n_refused += 1
    assert n_refused == 24
    # The last bits are those of the last value's state: plus 1, and the lane ends in another.
    last = ValueSequence(16, CONTEXTS[:1], [0])
    number = int.from_bytes(GOOD.encode([last]), "little")
    reader = GOOD.open(stream_of(number ^ 1))
    assert reader.take_sequence(16, last.contexts) == [0]
    with pytest.raises(CorruptFrame, match="another state"):
        reader.finish()


@settings(max_examples=200)
@given(junk=st.binary(max_size=120))
def test_junk_is_refused_or_some_numbers(junk: bytes) -> None:
    try:
        values = read_all(junk)
    except CorruptFrame:
        return
    assert all(-(1 << 15) <= number < 1 << 15 for number in values)

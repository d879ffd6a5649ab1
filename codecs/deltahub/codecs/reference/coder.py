"""The coder: numbers as symbols of static tables and raw digits, in 32 lanes (tANS).

Format: codecs/spec/coder.md. What the numbers mean is each codec's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import xxhash

from deltahub.codecs.errors import InvalidInput
from deltahub.codecs.protocol import Buffer
from deltahub.codecs.reference.bits import BitReader, Field, require
from deltahub.codecs.reference.words import signed

N_LANES = 32
GUARD_BYTES = 4
TABLE_LOGS = range(7, 11)
ESCAPE, NEGATIVE_ESCAPE = 0, 1  # of numbers >= 0, and of those below
ESCAPES = ((0, 63), (-1, 63))

Frequencies = tuple[int, ...]  # one a symbol


@dataclass(frozen=True)
class Context:
    """How one number is coded: by which table, and how many low bits are raw in any case."""

    table: int
    shift: int


@dataclass(frozen=True)
class Alphabet:
    """What each symbol says of a number: its high part and how many low bits are raw."""

    symbols: tuple[tuple[int, int], ...]  # (mant, width)
    stride: int  # a frequency's length is told from that of the symbol so many before

    def raw_bits(self, symbol: int, shift: int, bits: int) -> int:
        return min(self.symbols[symbol][1] + shift, bits - 1)

    def symbol(self, number: int, frequencies: Frequencies, shift: int, bits: int) -> int:
        """The number's symbol, an escape where it has none or where none of its own is used."""
        for symbol, (mant, width) in enumerate(self.symbols):
            if symbol > NEGATIVE_ESCAPE and number >> (width + shift) == mant:
                if frequencies[symbol]:
                    return symbol
                break
        escape = NEGATIVE_ESCAPE if signed(number, bits) < 0 else ESCAPE
        if not frequencies[escape]:
            raise InvalidInput(f"{number} has no symbol in its table, and no escape")
        return escape


@dataclass(frozen=True)
class Numbers:
    """One sequence of a stream."""

    bits: int  # numbers are modulo 2^bits; decoded they are signed
    contexts: Sequence[Context]  # one a number
    numbers: Sequence[int]


@dataclass(frozen=True)
class State:
    """One entry of a table."""

    symbol: int
    n_digits: int
    next_state: int  # plus the next n_digits


@dataclass(frozen=True)
class Table:
    table_log: int
    frequencies: Frequencies

    @cached_property
    def states(self) -> list[State]:
        n_states = 1 << self.table_log
        step = n_states // 2 + n_states // 8 + 3
        symbol_of, at = [0] * n_states, 0
        for symbol, frequency in enumerate(self.frequencies):
            for _ in range(frequency):
                symbol_of[at] = symbol
                at = (at + step) % n_states
        states, ranks = [], list(self.frequencies)
        for symbol in symbol_of:
            n_digits = self.table_log + 1 - ranks[symbol].bit_length()
            states.append(State(symbol, n_digits, (ranks[symbol] << n_digits) - n_states))
            ranks[symbol] += 1
        return states

    @cached_property
    def states_of(self) -> list[list[int]]:
        """The states of each symbol, rising; their ranks begin at the symbol's frequency."""
        states_of: list[list[int]] = [[] for _ in self.frequencies]
        for number, state in enumerate(self.states):
            states_of[state.symbol].append(number)
        return states_of

    def state_before(self, symbol: int, after: int) -> int:
        """The one state that decodes to the symbol and can lead to the state after it."""
        frequency, rank = self.frequencies[symbol], after + (1 << self.table_log)
        while rank >= 2 * frequency:
            rank >>= 1  # the digits that the state will read
        return self.states_of[symbol][rank - frequency]


@dataclass(frozen=True)
class Coder:
    """The tables of one frame."""

    alphabet: Alphabet
    tables: tuple[Table, ...]

    @property
    def table_log(self) -> int:
        return self.tables[0].table_log

    def encode(self, sequences: Sequence[Numbers]) -> bytes:
        """The stream of the sequences; InvalidInput for a number that the tables cannot code."""
        states = [0] * N_LANES  # in which a decoder ends
        digits: list[str] = []  # from the last number to the first
        for sequence in reversed(sequences):
            for i in reversed(range(len(sequence.numbers))):
                number, context = sequence.numbers[i], sequence.contexts[i]
                table = self.tables[context.table]
                symbol = self.alphabet.symbol(
                    number, table.frequencies, context.shift, sequence.bits
                )
                after = states[i % N_LANES]
                before = table.state_before(symbol, after)
                state = table.states[before]
                digits.append(_digits(after - state.next_state, state.n_digits))
                raw_bits = self.alphabet.raw_bits(symbol, context.shift, sequence.bits)
                digits.append(_digits(number % (1 << raw_bits), raw_bits))
                states[i % N_LANES] = before
        digits += [_digits(state, self.table_log) for state in reversed(states)]
        text = "1" + "".join(reversed(digits))
        return int(text, 2).to_bytes((len(text) + 7) // 8, "little")

    def open(self, stream: Buffer) -> "StreamReader":
        return StreamReader(self, stream)


class StreamReader:
    """Decodes a stream sequence by sequence; CorruptFrame where no encoder writes such a stream."""

    def __init__(self, coder: Coder, stream: Buffer) -> None:
        require(len(stream) > 0 and stream[-1] != 0, "the stream has no end")
        self._coder = coder
        self._text = bin(int.from_bytes(stream, "little"))[2:]
        self._at = 1  # behind the marker
        self._states = [self._take(coder.table_log) for _ in range(N_LANES)]

    def _take(self, n_digits: int) -> int:
        begin, self._at = self._at, self._at + n_digits
        require(self._at <= len(self._text), "the stream ends early")
        return int(self._text[begin : self._at] or "0", 2)

    def take_sequence(self, bits: int, contexts: Sequence[Context]) -> list[int]:
        """The next sequence's numbers, signed: one for each context."""
        numbers = []
        for i, context in enumerate(contexts):
            state = self._coder.tables[context.table].states[self._states[i % N_LANES]]
            raw_bits = self._coder.alphabet.raw_bits(state.symbol, context.shift, bits)
            raw = self._take(raw_bits)
            self._states[i % N_LANES] = state.next_state + self._take(state.n_digits)
            mant, _ = self._coder.alphabet.symbols[state.symbol]
            numbers.append(signed((mant << raw_bits) + raw, bits))
        return numbers

    def finish(self) -> None:
        require(self._at == len(self._text), "the stream goes on")
        require(not any(self._states), "the stream ends in another state")


def guarded(stream: bytes) -> bytes:
    """A coded block: its stream behind a guard, so that no damage can be decoded."""
    return _guard(stream) + stream


def unguarded(block: Buffer) -> bytes:
    """The stream of a coded block; CorruptFrame where the guard does not match."""
    guard, stream = bytes(block[:GUARD_BYTES]), bytes(block[GUARD_BYTES:])
    require(guard == _guard(stream), "the guard does not match")
    return stream


def _guard(stream: bytes) -> bytes:
    low = xxhash.xxh3_64_intdigest(stream) % (1 << 8 * GUARD_BYTES)
    return low.to_bytes(GUARD_BYTES, "little")


def _digits(value: int, n_digits: int) -> str:
    return f"{value:0{n_digits}b}" if n_digits else ""


def table_fields(table: Table, stride: int) -> list[Field]:
    """A table as fields of a prelude."""
    fields: list[Field] = []
    lengths: list[int] = []
    left = 1 << table.table_log
    for symbol, frequency in enumerate(table.frequencies):
        if left == 0:
            break
        lengths.append(frequency.bit_length())
        change = lengths[-1] - (lengths[symbol - stride] if symbol >= stride else 0)
        ones = 2 * change if change >= 0 else -2 * change - 1
        fields.append(((1 << ones) - 1, ones + 1))
        if frequency > 1:
            fields.append((frequency - (1 << (lengths[-1] - 1)), lengths[-1] - 1))
        left -= frequency
    return fields


def read_table(reader: BitReader, table_log: int, alphabet: Alphabet) -> Table:
    lengths: list[int] = []
    frequencies = [0] * len(alphabet.symbols)
    left = 1 << table_log
    while left > 0:
        symbol = len(lengths)
        require(symbol < len(frequencies), "frequencies below their sum")
        ones = reader.take_unary(2 * (table_log + 1))
        change = ones // 2 if ones % 2 == 0 else -(ones + 1) // 2
        length = (lengths[symbol - alphabet.stride] if symbol >= alphabet.stride else 0) + change
        require(0 <= length <= table_log + 1, f"a frequency of {length} bits")
        lengths.append(length)
        if length > 0:
            frequencies[symbol] = (1 << (length - 1)) + reader.take(length - 1)
        left -= frequencies[symbol]
    require(left == 0, "frequencies above their sum")
    return Table(table_log, tuple(frequencies))


def read_table_log(reader: BitReader) -> int:
    table_log = reader.take(4)
    require(table_log in TABLE_LOGS, f"tables of 2^{table_log} states")
    return table_log

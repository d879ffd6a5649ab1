"""The coder: tANS with static tables and raw bits, in 32 lanes.

Format: codecs/spec/coder.md. Each codec gives the values their meaning.
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
ESCAPE, NEGATIVE_ESCAPE = 0, 1  # symbols of other values >= 0 and < 0
ESCAPES = ((0, 63), (-1, 63))

Frequencies = tuple[int, ...]  # one for each symbol


@dataclass(frozen=True)
class Context:
    """How a value is coded: its table, and the number of low bits that are always raw."""

    table: int
    shift: int


@dataclass(frozen=True)
class Alphabet:
    """The high part (mant) and the number of raw bits (width) of each symbol's values."""

    symbols: tuple[tuple[int, int], ...]  # (mant, width)
    length_distance: int  # k on the page: to the symbol that predicts a frequency's length

    def raw_bits(self, symbol: int, shift: int, bits: int) -> int:
        return min(self.symbols[symbol][1] + shift, bits - 1)

    def symbol(self, value: int, frequencies: Frequencies, shift: int, bits: int) -> int:
        """The value's symbol; an escape if there is none, or if the table does not use it."""
        for symbol, (mant, width) in enumerate(self.symbols):
            if symbol > NEGATIVE_ESCAPE and value >> (width + shift) == mant:
                if frequencies[symbol]:
                    return symbol
                break
        escape = NEGATIVE_ESCAPE if signed(value, bits) < 0 else ESCAPE
        if not frequencies[escape]:
            raise InvalidInput(f"{value} has no symbol in its table, and no escape")
        return escape


@dataclass(frozen=True)
class ValueSequence:
    """One sequence of values of a stream."""

    bits: int  # values are modulo 2^bits; decoded values are signed
    contexts: Sequence[Context]  # one for each value
    values: Sequence[int]


@dataclass(frozen=True)
class State:
    """One entry of a table."""

    symbol: int
    n_bits: int
    next_state: int  # to which the next n_bits are added


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
            n_bits = self.table_log + 1 - ranks[symbol].bit_length()
            states.append(State(symbol, n_bits, (ranks[symbol] << n_bits) - n_states))
            ranks[symbol] += 1
        return states

    @cached_property
    def states_of(self) -> list[list[int]]:
        """The states of each symbol, rising; their counters begin at the symbol's frequency."""
        states_of: list[list[int]] = [[] for _ in self.frequencies]
        for index, state in enumerate(self.states):
            states_of[state.symbol].append(index)
        return states_of

    def state_before(self, symbol: int, after: int) -> int:
        """The only state of the symbol whose next state can be `after`."""
        frequency, rank = self.frequencies[symbol], after + (1 << self.table_log)
        while rank >= 2 * frequency:
            rank >>= 1  # a bit that the decoder reads in this state
        return self.states_of[symbol][rank - frequency]


@dataclass(frozen=True)
class Coder:
    """The tables of one frame."""

    alphabet: Alphabet
    tables: tuple[Table, ...]

    @property
    def table_log(self) -> int:
        return self.tables[0].table_log

    def encode(self, sequences: Sequence[ValueSequence]) -> bytes:
        """The stream of the sequences. InvalidInput for a value that the tables cannot code."""
        states = [0] * N_LANES  # a decoder ends in state 0
        fields: list[str] = []  # from the last value to the first
        for sequence in reversed(sequences):
            for i in reversed(range(len(sequence.values))):
                value, context = sequence.values[i], sequence.contexts[i]
                table = self.tables[context.table]
                symbol = self.alphabet.symbol(
                    value, table.frequencies, context.shift, sequence.bits
                )
                after = states[i % N_LANES]
                before = table.state_before(symbol, after)
                state = table.states[before]
                fields.append(_binary(after - state.next_state, state.n_bits))
                raw_bits = self.alphabet.raw_bits(symbol, context.shift, sequence.bits)
                fields.append(_binary(value % (1 << raw_bits), raw_bits))
                states[i % N_LANES] = before
        fields += [_binary(state, self.table_log) for state in reversed(states)]
        text = "1" + "".join(reversed(fields))
        return int(text, 2).to_bytes((len(text) + 7) // 8, "little")

    def open(self, stream: Buffer) -> "StreamReader":
        return StreamReader(self, stream)


class StreamReader:
    """Decodes a stream, one sequence after another. CorruptFrame for a stream of no encoder."""

    def __init__(self, coder: Coder, stream: Buffer) -> None:
        require(len(stream) > 0 and stream[-1] != 0, "the stream has no end")
        self._coder = coder
        self._text = bin(int.from_bytes(stream, "little"))[2:]
        self._at = 1  # after the marker
        self._states = [self._take(coder.table_log) for _ in range(N_LANES)]

    def _take(self, n_bits: int) -> int:
        begin, self._at = self._at, self._at + n_bits
        require(self._at <= len(self._text), "the stream ends early")
        return int(self._text[begin : self._at] or "0", 2)

    def take_sequence(self, bits: int, contexts: Sequence[Context]) -> list[int]:
        """The values of the next sequence, signed: one for each context."""
        values = []
        for i, context in enumerate(contexts):
            state = self._coder.tables[context.table].states[self._states[i % N_LANES]]
            raw_bits = self._coder.alphabet.raw_bits(state.symbol, context.shift, bits)
            raw = self._take(raw_bits)
            self._states[i % N_LANES] = state.next_state + self._take(state.n_bits)
            mant, _ = self._coder.alphabet.symbols[state.symbol]
            values.append(signed((mant << raw_bits) + raw, bits))
        return values

    def finish(self) -> None:
        require(self._at == len(self._text), "the stream goes on")
        require(not any(self._states), "the stream ends in another state")


def guarded(stream: bytes) -> bytes:
    """A coded block: the guard, then the stream."""
    return _guard(stream) + stream


def unguarded(block: Buffer) -> bytes:
    """The stream of a coded block. CorruptFrame if the guard does not match."""
    guard, stream = bytes(block[:GUARD_BYTES]), bytes(block[GUARD_BYTES:])
    require(guard == _guard(stream), "the guard does not match")
    return stream


def _guard(stream: bytes) -> bytes:
    low = xxhash.xxh3_64_intdigest(stream) % (1 << 8 * GUARD_BYTES)
    return low.to_bytes(GUARD_BYTES, "little")


def _binary(value: int, n_bits: int) -> str:
    return f"{value:0{n_bits}b}" if n_bits else ""


def table_fields(table: Table, length_distance: int) -> list[Field]:
    """The fields of a table in a prelude. length_distance: see Alphabet."""
    fields: list[Field] = []
    lengths: list[int] = []
    left = 1 << table.table_log
    for symbol, frequency in enumerate(table.frequencies):
        if left == 0:
            break
        lengths.append(frequency.bit_length())
        change = lengths[-1] - (
            lengths[symbol - length_distance] if symbol >= length_distance else 0
        )
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
        length = (
            lengths[symbol - alphabet.length_distance] if symbol >= alphabet.length_distance else 0
        ) + change
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

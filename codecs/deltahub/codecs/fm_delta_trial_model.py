"""The model of an fm_delta frame of version 0: its prelude, and the tables that decode by it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame

Ints = npt.NDArray[np.int64]

TABLE_LOGS: Final = range(7, 12)
N_LINEAR: Final = 16
N_CELLS: Final = 40
N_SYMBOLS: Final = 1 + 2 * N_CELLS
ESCAPE: Final = 0
EXPONENT_BITS: Final = {
    DType.F64: 11,
    DType.F32: 8,
    DType.F16: 5,
    DType.BF16: 8,
    DType.F8_E4M3: 4,
    DType.F8_E5M2: 5,
}
# 16 contexts, each with a key, a shift and 81 frequencies of 15 bits.
MAX_BYTES: Final = (8 + 16 * (11 + 6 + N_SYMBOLS * 15)) // 8 + 1


@dataclass(frozen=True)
class Context:
    """Keys whose deltas are coded alike: from first_key to the next context's."""

    first_key: int
    shift: int  # low bits of a delta that are always raw
    frequencies: tuple[int, ...]  # one a symbol


@dataclass(frozen=True)
class Model:
    """What a prelude says. key_bits: of the exponent; 0 for integers, which have one key."""

    word_bits: int
    key_bits: int
    table_log: int
    contexts: tuple[Context, ...]


@dataclass(frozen=True)
class Tables:
    """All contexts' states in a row, and behind them states that read nothing and stay.

    Of each state: next_states: without the digits that are added; state_masks: as many ones as
    these are; raw_bits: how many digits the delta has, and least: what they are added to;
    all_bits: how many digits there are of both. of_key: where the table of a key begins. idle:
    where the states that stay begin.
    """

    word_bits: int
    key_bits: int
    log: int
    next_states: Ints
    state_masks: Ints
    raw_bits: Ints
    all_bits: Ints
    least: Ints
    of_key: Ints
    idle: int


def parse_prelude(prelude: bytes, dtype: DType) -> Model:
    """The model; CorruptFrame where no encoder writes such a prelude."""
    word_bits, key_bits = 8 * dtype.itemsize, EXPONENT_BITS.get(dtype, 0)
    _require(len(prelude) <= MAX_BYTES, "it goes on")
    fields = _Fields(prelude)
    table_log = fields.take(4)
    _require(table_log in TABLE_LOGS, f"tables of 2^{table_log} states")
    contexts: list[Context] = []
    for i in range(fields.take(4) + 1):
        first_key = fields.take(key_bits) if i > 0 else 0
        _require(i == 0 or first_key > contexts[-1].first_key, "contexts are not in order")
        shift = fields.take(6)
        _require(shift < word_bits, f"a shift of {shift} bits")
        frequencies = _take_frequencies(fields, 1 << table_log)
        for symbol, frequency in enumerate(frequencies):
            is_reached = symbol == ESCAPE or _start(symbol) << shift < 1 << (word_bits - 1)
            _require(frequency == 0 or is_reached, "a symbol beyond the words' range")
        contexts.append(Context(first_key, shift, frequencies))
    _require(fields.is_finished, "it goes on")
    return Model(word_bits, key_bits, table_log, tuple(contexts))


def make_tables(model: Model) -> Tables:
    """What a model's states mean."""
    n_states = 1 << model.table_log
    tables = [_table(context, model) for context in model.contexts]
    stay = np.arange(n_states), *[np.zeros(n_states, np.int64)] * 3
    columns = [np.concatenate(column) for column in zip(*tables, stay, strict=True)]
    next_states, state_bits, raw_bits, least = columns
    first_keys = [context.first_key for context in model.contexts]
    keys = np.arange(1 << model.key_bits)
    return Tables(
        model.word_bits,
        model.key_bits,
        model.table_log,
        next_states,
        (1 << state_bits) - 1,
        raw_bits,
        state_bits + raw_bits,
        least,
        (np.searchsorted(first_keys, keys, side="right") - 1) * n_states,
        len(tables) * n_states,
    )


class _Fields:
    """Numbers of some bits each, from the lowest bit of the first byte on."""

    def __init__(self, data: bytes) -> None:
        self._left, self._n_left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, n_bits: int) -> int:
        _require(n_bits <= self._n_left, "it ends early")
        value = self._left & ((1 << n_bits) - 1)
        self._left >>= n_bits
        self._n_left -= n_bits
        return value

    @property
    def is_finished(self) -> bool:
        return self._n_left < 8 and self._left == 0


def _take_frequencies(fields: _Fields, left: int) -> tuple[int, ...]:
    frequencies = [0] * N_SYMBOLS
    for symbol in range(N_SYMBOLS):
        length = fields.take(4)
        if length > 0:
            frequencies[symbol] = (1 << (length - 1)) + fields.take(length - 1)
        left -= frequencies[symbol]
        if left <= 0:
            break
    _require(left == 0, "frequencies do not add up")
    _require(frequencies[ESCAPE] > 0, "no escape")
    return tuple(frequencies)


def _width_bits(symbol: int) -> int:
    """Digits of a symbol's place within its cell."""
    cell = (symbol - 1) // 2
    return 0 if cell < N_LINEAR else (cell - N_LINEAR) // 2 + 3


def _start(symbol: int) -> int:
    """The least magnitude of a symbol's cell."""
    cell = (symbol - 1) // 2
    return cell if cell < N_LINEAR else (2 + cell % 2) << _width_bits(symbol)


def _table(context: Context, model: Model) -> tuple[Ints, Ints, Ints, Ints]:
    """(next_states, their digits, raw_bits, least) of the context's states."""
    n_states = 1 << model.table_log
    frequencies = np.array(context.frequencies, np.int64)
    step = (n_states >> 1) + (n_states >> 3) + 3
    symbols = np.empty(n_states, np.int64)
    symbols[np.arange(n_states) * step % n_states] = np.repeat(np.arange(N_SYMBOLS), frequencies)
    # The states of each symbol in rising order; its ranks count up from its frequency.
    by_symbol = np.argsort(symbols, kind="stable")
    begins = np.cumsum(frequencies) - frequencies
    ranks = np.empty(n_states, np.int64)
    of = symbols[by_symbol]
    ranks[by_symbol] = np.arange(n_states) - begins[of] + frequencies[of]
    state_bits = model.table_log + 1 - np.frexp(ranks)[1].astype(np.int64)
    next_states = (ranks << state_bits) - n_states
    raw_bits, least = np.zeros(N_SYMBOLS, np.int64), np.zeros(N_SYMBOLS, np.int64)
    raw_bits[ESCAPE] = model.word_bits
    for symbol in range(1, N_SYMBOLS):
        if frequencies[symbol] > 0:  # others may be beyond 64 bits
            raw_bits[symbol] = context.shift + _width_bits(symbol)
            start = _start(symbol) << context.shift
            least[symbol] = start if symbol % 2 else -start - (1 << int(raw_bits[symbol]))
    return next_states, state_bits, raw_bits[symbols], least[symbols]


def _require(is_sound: bool, fault: str) -> None:
    if not is_sound:
        raise CorruptFrame(f"fm_delta prelude, version 0: {fault}")

"""fm_delta version 0 in readable Python, from the release that wrote it: both ways, and slow.

Format: codecs/spec/fm_delta_v0.md. The hub has no encoder of it; tests make frames by this one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from deltahub.codecs import BY_ID, BlockMode, CorruptFrame, DType, EncodedBody, Geometry
from deltahub.codecs._native import BlockTable
from deltahub.codecs.blocks import block_checksum
from deltahub.codecs.frame_header import TABLE_ROW
from deltahub.codecs.protocol import Buffer, StoredBlocks
from support.coded_frames import CodedFrame
from support.frames import forge_header

N_LANES = 8
N_LINEAR = 16
N_OCTAVES = 12
N_CELLS = N_LINEAR + 2 * N_OCTAVES
N_SYMBOLS = 1 + 2 * N_CELLS
ESCAPE = 0
TABLE_LOGS = range(7, 12)

EXPONENT_BITS = {
    DType.F64: 11,
    DType.F32: 8,
    DType.F16: 5,
    DType.BF16: 8,
    DType.F8_E4M3: 4,
    DType.F8_E5M2: 5,
}


@dataclass(frozen=True)
class Words:
    """How the elements of a dtype are words: their bits, and the bits of their key."""

    bits: int
    key_bits: int  # exponent of a float; 0 for integers, which have one key

    @classmethod
    def of(cls, dtype: DType) -> "Words":
        return cls(8 * dtype.itemsize, EXPONENT_BITS.get(dtype, 0))

    def read(self, data: Buffer) -> list[int]:
        words: list[int] = np.frombuffer(data, dtype=f"<u{self.bits // 8}").tolist()
        return words

    def write(self, words: Sequence[int]) -> bytes:
        return np.array(words, dtype=f"<u{self.bits // 8}").tobytes()

    @property
    def top(self) -> int:
        return 1 << (self.bits - 1)

    def signed(self, value: int) -> int:
        """The value modulo 2^bits, from -2^(bits-1) on."""
        return (value + self.top) % (2 * self.top) - self.top

    def key(self, base: int) -> int:
        return (base >> (self.bits - 1 - self.key_bits)) % (1 << self.key_bits)

    def count(self, word: int, base: int) -> int:
        """Where a float stands on the number line, seen from zero towards the base's side."""
        on_side = self.signed(word ^ (base & self.top))
        return on_side if on_side >= 0 else on_side ^ (self.top - 1)

    def delta(self, word: int, base: int) -> int:
        if self.key_bits == 0:
            return self.signed(word - base)
        return self.signed(self.count(word, base) - self.count(base, base))

    def apply(self, base: int, delta: int) -> int:
        if self.key_bits == 0:
            return (base + delta) % (2 * self.top)
        count = self.signed(self.count(base, base) + delta)
        on_side = count if count >= 0 else count ^ (self.top - 1)
        return on_side % (2 * self.top) ^ (base & self.top)


def cell_width_bits(cell: int) -> int:
    return 0 if cell < N_LINEAR else (cell - N_LINEAR) // 2 + 3


def cell_start(cell: int) -> int:
    return cell if cell < N_LINEAR else (2 + cell % 2) << cell_width_bits(cell)


@dataclass(frozen=True)
class Context:
    """Keys whose deltas are coded alike: from first_key to the next context's."""

    first_key: int
    shift: int  # low bits of a delta that are always raw
    frequencies: tuple[int, ...]  # one a symbol

    def symbol(self, delta: int) -> int:
        """The symbol of a delta, the escape where it has none."""
        magnitude = (delta if delta >= 0 else ~delta) >> self.shift
        if magnitude >= N_LINEAR << N_OCTAVES:
            return ESCAPE
        cell = max(cell for cell in range(N_CELLS) if cell_start(cell) <= magnitude)
        symbol = 1 + 2 * cell + (delta < 0)
        return symbol if self.frequencies[symbol] else ESCAPE

    def raw_bits(self, symbol: int, words: Words) -> int:
        if symbol == ESCAPE:
            return words.bits
        return self.shift + cell_width_bits((symbol - 1) // 2)

    def least_delta(self, symbol: int, words: Words) -> int:
        """The symbol's least delta; its raw bits are added to it."""
        if symbol == ESCAPE:
            return 0
        start = cell_start((symbol - 1) // 2) << self.shift
        return start if symbol % 2 == 1 else -start - (1 << self.raw_bits(symbol, words))

    def is_reachable(self, symbol: int, words: Words) -> bool:
        return symbol == ESCAPE or cell_start((symbol - 1) // 2) << self.shift < words.top


@dataclass(frozen=True)
class Model:
    table_log: int
    contexts: tuple[Context, ...]

    def context(self, key: int) -> int:
        return max(i for i, context in enumerate(self.contexts) if context.first_key <= key)


def write_prelude(model: Model, words: Words) -> bytes:
    fields = [(model.table_log, 4), (len(model.contexts) - 1, 4)]
    for i, context in enumerate(model.contexts):
        if i > 0:
            fields.append((context.first_key, words.key_bits))
        fields.append((context.shift, 6))
        left = 1 << model.table_log
        for frequency in context.frequencies:
            if left == 0:
                break
            fields.append((frequency.bit_length(), 4))
            if frequency > 1:
                n_bits = frequency.bit_length() - 1
                fields.append((frequency - (1 << n_bits), n_bits))
            left -= frequency
    number = at = 0
    for value, n_bits in fields:
        number |= value << at
        at += n_bits
    return number.to_bytes((at + 7) // 8, "little")


def parse_prelude(prelude: Buffer, words: Words) -> Model:
    number, n_left = int.from_bytes(prelude, "little"), 8 * len(prelude)

    def take(n_bits: int) -> int:
        nonlocal number, n_left
        value, number, n_left = number % (1 << n_bits), number >> n_bits, n_left - n_bits
        _require(n_left >= 0, "the prelude ends early")
        return value

    table_log, n_contexts = take(4), take(4) + 1
    _require(table_log in TABLE_LOGS, f"tables of 2^{table_log} states")
    contexts: list[Context] = []
    for i in range(n_contexts):
        first_key = take(words.key_bits) if i > 0 else 0
        _require(i == 0 or first_key > contexts[-1].first_key, "contexts are not in order")
        shift = take(6)
        _require(shift < words.bits, f"a shift of {shift} bits")
        left, frequencies = 1 << table_log, [0] * N_SYMBOLS
        for symbol in range(N_SYMBOLS):
            if left == 0:
                break
            length = take(4)
            frequencies[symbol] = (1 << (length - 1)) + take(length - 1) if length else 0
            left -= frequencies[symbol]
        _require(left == 0, "frequencies do not add up")
        context = Context(first_key, shift, tuple(frequencies))
        _require(frequencies[ESCAPE] > 0, "no escape")
        _require(
            all(context.is_reachable(s, words) for s in range(N_SYMBOLS) if frequencies[s]),
            "a symbol beyond the words' range",
        )
        contexts.append(context)
    _require(n_left < 8 and number == 0, "the prelude goes on")
    return Model(table_log, tuple(contexts))


@dataclass(frozen=True)
class State:
    """One entry of a decoding table."""

    symbol: int
    n_bits: int
    next_state: int  # plus the next n_bits


def decoding_table(context: Context, table_log: int) -> list[State]:
    n_states = 1 << table_log
    step = (n_states >> 1) + (n_states >> 3) + 3
    symbols, at = [ESCAPE] * n_states, 0
    for symbol, frequency in enumerate(context.frequencies):
        for _ in range(frequency):
            symbols[at] = symbol
            at = (at + step) % n_states
    table, ranks = [], list(context.frequencies)
    for symbol in symbols:
        n_bits = table_log + 1 - ranks[symbol].bit_length()
        table.append(State(symbol, n_bits, (ranks[symbol] << n_bits) - n_states))
        ranks[symbol] += 1
    return table


def encoding_table(table: list[State]) -> dict[tuple[int, int], int]:
    """(symbol, state after it) -> the state that decodes to the symbol and leads there."""
    return {
        (entry.symbol, entry.next_state + low): state
        for state, entry in enumerate(table)
        for low in range(1 << entry.n_bits)
    }


def encode_block(words: Words, model: Model, source: Buffer, base: Buffer) -> bytes:
    """One block's stream. It may be as long as the block or longer; then the block is kept raw."""
    tables = [decoding_table(context, model.table_log) for context in model.contexts]
    inverse = [encoding_table(table) for table in tables]
    to_code = list(zip(words.read(source), words.read(base), strict=True))
    states = [0] * min(N_LANES, len(to_code))  # a decoder ends in state 0
    digits: list[str] = []  # from the last word to the first
    for i in reversed(range(len(to_code))):
        word, base_word = to_code[i]
        c = model.context(words.key(base_word))
        delta = words.delta(word, base_word)
        symbol = model.contexts[c].symbol(delta)
        raw = delta - model.contexts[c].least_delta(symbol, words)
        before = inverse[c][symbol, states[i % N_LANES]]
        entry = tables[c][before]
        digits.append(_binary(states[i % N_LANES] - entry.next_state, entry.n_bits))
        digits.append(_binary(raw % (1 << words.bits), model.contexts[c].raw_bits(symbol, words)))
        states[i % N_LANES] = before
    digits += [_binary(state, model.table_log) for state in reversed(states)]
    text = "1" + "".join(reversed(digits))
    return int(text, 2).to_bytes((len(text) + 7) // 8, "little")


def decode_block(words: Words, model: Model, stream: Buffer, base: Buffer) -> bytes:
    """The block that a stream holds; CorruptFrame where no encoder writes such a stream."""
    _require(len(stream) > 0 and stream[-1] != 0, "the stream has no end")
    text, at = bin(int.from_bytes(stream, "little"))[2:], 1

    def take(n_bits: int) -> int:
        nonlocal at
        at += n_bits
        _require(at <= len(text), "the stream ends early")
        return int(text[at - n_bits : at] or "0", 2)

    tables = [decoding_table(context, model.table_log) for context in model.contexts]
    base_words = words.read(base)
    states = [take(model.table_log) for _ in range(min(N_LANES, len(base_words)))]
    decoded = []
    for i, base_word in enumerate(base_words):
        c = model.context(words.key(base_word))
        entry = tables[c][states[i % N_LANES]]
        raw = take(model.contexts[c].raw_bits(entry.symbol, words))
        states[i % N_LANES] = entry.next_state + take(entry.n_bits)
        delta = model.contexts[c].least_delta(entry.symbol, words) + raw
        decoded.append(words.apply(base_word, delta))
    _require(at == len(text), "the stream goes on")
    _require(not any(states), "the stream ends in another state")
    return words.write(decoded)


def _binary(value: int, n_bits: int) -> str:
    return f"{value:0{n_bits}b}" if n_bits else ""


def _require(is_sound: bool, fault: str) -> None:
    if not is_sound:
        raise CorruptFrame(f"fm_delta: {fault}")


def model_of(
    words: Words, source: Buffer, base: Buffer, first_keys: Iterable[int], shift: int, log: int
) -> Model:
    """Contexts of these keys with the frequencies of their symbols, as far as a table has room."""
    contexts = [Context(key, shift, (1,) * N_SYMBOLS) for key in sorted({0, *first_keys})]
    seen = [Counter[int]() for _ in contexts]
    of_keys = Model(log, tuple(contexts))
    for word, base_word in zip(words.read(source), words.read(base), strict=True):
        i = of_keys.context(words.key(base_word))
        seen[i][contexts[i].symbol(words.delta(word, base_word))] += 1
    n_states = 1 << log
    made = []
    for context, counts in zip(contexts, seen, strict=True):
        frequencies = [0] * N_SYMBOLS
        for symbol, count in counts.items():
            if context.is_reachable(symbol, words):
                frequencies[symbol] = 1 + count * (n_states - N_SYMBOLS) // counts.total()
        frequencies[ESCAPE] += n_states - sum(frequencies)
        made.append(Context(context.first_key, shift, tuple(frequencies)))
    return Model(log, tuple(made))


def trial(
    geometry: Geometry,
    source: bytes,
    base: bytes,
    first_keys: Iterable[int] = (),
    shift: int = 0,
    log: int = 11,
) -> CodedFrame:
    """One tensor, coded by version 0."""
    words = Words.of(geometry.dtype)
    model = model_of(words, source, base, first_keys, shift, log)
    blocks, checksums = StoredBlocks(), []
    for index in range(geometry.n_blocks):
        span = slice(*geometry.block_bytes(index))
        checksums.append(block_checksum(source[span], index))
        stream = encode_block(words, model, source[span], base[span])
        if source[span] == base[span]:
            blocks.append(BlockMode.UNCHANGED, b"")
        elif len(stream) >= len(source[span]):
            blocks.append(BlockMode.RAW, source[span])
        else:
            blocks.append(BlockMode.CODED, stream)
    body = EncodedBody(write_prelude(model, words), blocks, checksums)
    return CodedFrame("fm_delta", geometry, source, base, body)


def frame_of(case: CodedFrame) -> bytes:
    """The frame of version 0. There is none where it is longer than a raw one."""
    return forge_header(case.frame, codec_version=0)


def decoded(case: CodedFrame) -> bytes:
    """What the codec makes of all blocks, be they of a frame or not."""
    geometry, blocks = case.geometry, [*case.body.blocks]
    assert case.base is not None
    rows = zip(blocks, case.body.checksums, strict=True)
    table = b"".join(TABLE_ROW.pack(len(data), mode, check) for (mode, data), check in rows)
    cut = geometry.rows_per_block, geometry.parts_per_row
    stored = b"".join(data for _, data in blocks)
    item = geometry.dtype.itemsize
    read = BlockTable(table, geometry.rows, geometry.columns, item, *cut, True, len(stored))
    out = bytearray(geometry.size_bytes)
    near, target = memoryview(case.base), memoryview(out)
    BY_ID["fm_delta"].decode(
        geometry, 0, case.body.prelude, read, 0, len(blocks), memoryview(stored), near, target, 1
    )
    return bytes(out)

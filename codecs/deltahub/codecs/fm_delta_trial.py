"""fm_delta version 0: how the format on trial is read. Nothing writes it.

Format: codecs/spec/fm_delta_v0.md. Once a store was brought up to date nothing has such frames, so
there is no native code: NumPy takes one word of every lane of every block in each of its steps.
The more blocks are asked for at once, the faster each of them is.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs._native import BlockTable
from deltahub.codecs.blocks import (
    BlockFault,
    block_checksum,
    decode_plain,
    decoded_spans,
    stored_spans,
)
from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta_trial_model import Tables, make_tables, parse_prelude
from deltahub.codecs.protocol import BlockMode, Geometry

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.unsignedinteger[Any]]

LANES: Final = 8
# Blocks that are decoded together: more lanes than these make no step faster.
_BLOCKS: Final = 1 << 10
# Words of such blocks between two moves from lanes to the caller's buffer: what bounds the memory.
_CHUNK_WORDS: Final = 1 << 18
_BIT_LENGTHS: Final = np.array([value.bit_length() for value in range(256)], np.int64)


def decode(
    geometry: Geometry,
    prelude: bytes,
    blocks: BlockTable,
    first: int,
    end: int,
    payload: memoryview,
    base: memoryview,
    out: memoryview,
    threads: int,
) -> None:
    """Fill `out` with blocks [first, end), as Codec.decode."""
    if not prelude:  # which an encoder wrote where no block was coded
        decode_plain(blocks, first, end, payload, base, out, threads)
        return
    model = parse_prelude(prelude, geometry.dtype)
    rows = blocks.rows(first, end)
    decoded = list(decoded_spans(geometry, first, len(rows)))
    stored = stored_spans([length for _, length, _ in rows])
    coded: list[int] = []
    for i, (mode, _, _) in enumerate(rows):
        if mode == BlockMode.CODED:
            coded.append(i)
        elif mode == BlockMode.RAW:
            out[slice(*decoded[i])] = payload[slice(*stored[i])]
        else:
            out[slice(*decoded[i])] = base[slice(*decoded[i])]
    words = f"<u{geometry.dtype.itemsize}"
    near, target = np.frombuffer(base, words), np.frombuffer(out, words)
    tables = make_tables(model)
    faulty: set[int] = set()
    for at in range(0, len(coded), _BLOCKS):
        together = coded[at : at + _BLOCKS]
        low, high = stored[together[0]][0], stored[together[-1]][1]
        streams = np.array([stored[i] for i in together], np.int64) - low
        spans = np.array([decoded[i] for i in together], np.int64) // geometry.dtype.itemsize
        lanes = _Lanes(geometry.dtype, tables, payload[low:high], streams, spans)
        sound = lanes.decode(near, target).tolist()
        faulty.update(i for i, is_sound in zip(together, sound, strict=True) if not is_sound)
    for i, (_, _, checksum) in enumerate(rows):
        if i in faulty:
            raise BlockFault.STREAM.error(first + i, has_base=True)
        if block_checksum(out[slice(*decoded[i])], first + i) != checksum:
            raise BlockFault.OTHER_BYTES.error(first + i, has_base=True)


class _Lanes:
    """The lanes of some coded blocks side by side, and how far they have been read.

    streams: (begin, end) of each block's bytes in the payload; spans: of its words.
    """

    def __init__(
        self, dtype: DType, tables: Tables, payload: memoryview, streams: Ints, spans: Ints
    ) -> None:
        self.dtype = dtype
        self.tables = tables
        self.spans = spans
        self._begins = 8 * streams[:, 0]
        self._windows = _windows(payload)
        last = np.frombuffer(payload, np.uint8)[streams[:, 1] - 1]
        self._has_marker = last != 0
        # Bits that are not read yet, from the payload's begin: streams are read backwards.
        position = 8 * streams[:, 1] - 9 + _BIT_LENGTHS[last]
        n_words = spans[:, 1] - spans[:, 0]
        n_bits = np.where(np.arange(LANES)[:, None] < n_words, tables.log, 0)
        begins = position - n_bits.cumsum(axis=0)
        self._states = self._digits(begins, n_bits)
        self._position = begins[-1]

    def decode(self, base: Words, out: Words) -> npt.NDArray[np.bool_]:
        """Fill the blocks' words in `out`; whether each stream is one that an encoder writes."""
        n_rounds = -(-int((self.spans[:, 1] - self.spans[:, 0]).max()) // LANES)
        chunk = max(1, _CHUNK_WORDS // (LANES * len(self.spans)))
        for begin in range(0, n_rounds, chunk):
            self._decode_rounds(begin, min(begin + chunk, n_rounds), base, out)
        # Positions only fall: one that ended at the stream's begin was never before it.
        is_read = self._position == self._begins
        sound: npt.NDArray[np.bool_] = self._has_marker & is_read & ~self._states.any(axis=0)
        return sound

    def _decode_rounds(self, begin: int, end: int, base: Words, out: Words) -> None:
        """LANES words in each round of every block; the shorter blocks idle at the end."""
        n_blocks, n_words = len(self.spans), LANES * (end - begin)
        near = np.zeros((n_blocks, n_words), base.dtype)
        table = np.full((n_blocks, n_words), self.tables.idle)
        places: list[tuple[int, int, int]] = []
        for block, (low, high) in enumerate(self.spans.tolist()):
            at = low + LANES * begin
            n = min(max(high - at, 0), n_words)
            near[block, :n] = base[at : at + n]
            table[block, :n] = self.tables.of_key.take(self._keys(near[block, :n]))
            places.append((block, at, n))
        by_round = table.reshape(n_blocks, -1, LANES).transpose(1, 2, 0)
        deltas = self._decode_lanes(np.ascontiguousarray(by_round)).astype(base.dtype)
        words = self._moved(near, deltas.transpose(2, 0, 1).reshape(n_blocks, n_words))
        for block, at, n in places:
            out[at : at + n] = words[block, :n]

    def _decode_lanes(self, entries: Ints) -> Ints:
        """The deltas of all rounds, modulo 2^64. entries: where the tables of the words begin."""
        tables, begins = self.tables, np.empty_like(entries)
        # One word of each lane a step, with no more work than the next step needs.
        for entry, at in zip(entries, begins, strict=True):
            entry += self._states
            n_bits = tables.all_bits.take(entry)
            np.subtract(self._position, np.add.accumulate(n_bits, out=n_bits), out=at)
            self._position = at[-1]
            window = self._windows.take(at >> 5, mode="clip")
            window >>= at & 31
            window &= tables.state_masks.take(entry)
            window += tables.next_states.take(entry)
            self._states = window
        self._position = self._position.copy()  # a row of what changes now
        raw_bits = tables.raw_bits.take(entries)
        begins += tables.all_bits.take(entries)
        begins -= raw_bits
        if tables.word_bits < 64:
            raw = self._digits(begins, raw_bits)
        else:
            raw = self._digits(begins, np.minimum(raw_bits, 32))
            raw |= self._digits(begins + 32, np.maximum(raw_bits - 32, 0)) << 32
        raw += tables.least.take(entries)
        return raw

    def _digits(self, begins: Ints, n_bits: Ints) -> Ints:
        """The n bits from `begins` on, n <= 32. Before the payload there are any."""
        window = self._windows.take(begins >> 5, mode="clip") >> (begins & 31)
        digits: Ints = window & ((1 << n_bits) - 1)
        return digits

    def _keys(self, words: Words) -> Words:
        """The exponent fields of floats; 0 of integers."""
        shifted = words >> words.dtype.type(self.tables.word_bits - 1 - self.tables.key_bits)
        keys: Words = shifted & words.dtype.type((1 << self.tables.key_bits) - 1)
        return keys

    def _moved(self, words: Words, deltas: Words) -> Words:
        """The words moved by the deltas, as section 3 of the page has it."""
        if not self.dtype.is_float:
            return words + deltas
        kind = words.dtype.type
        low = kind((1 << (self.tables.word_bits - 1)) - 1)
        moved = (words & low) + deltas
        is_beyond_zero = moved > low
        moved ^= words & ~low
        moved[is_beyond_zero] ^= low
        return moved


def _windows(payload: memoryview) -> Ints:
    """For each 4 bytes of the payload these and the 4 that follow: 64 bits, lowest first."""
    words = np.zeros(len(payload) // 4 + 2, "<u4")
    words.view(np.uint8)[: len(payload)] = np.frombuffer(payload, np.uint8)
    windows = np.empty(len(words) - 1, np.int64)
    windows.view("<u4")[::2] = words[:-1]
    windows.view("<u4")[1::2] = words[1:]
    return windows

"""How our fm_delta encoder chooses its model, in readable Python: native/planner.hpp, bit for bit.

Not part of the format: another choice makes other frames, and every decoder reads them. Integers
only, so that every machine chooses the same.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from deltahub.codecs.fm_delta_reference import (
    ESCAPE,
    N_CELLS,
    N_LINEAR,
    N_OCTAVES,
    N_SYMBOLS,
    Context,
    Model,
    Words,
    cell_start,
    cell_width_bits,
)
from deltahub.codecs.protocol import Buffer

SAMPLE_RUN = 64  # words side by side
SAMPLE_LEAST = 1 << 17
MAX_GROUPS = 20  # of keys, before they are merged into contexts
MAX_CONTEXTS = 16


def _log2_of_mantissa(i: int) -> int:
    y, log = (256 + i) << 22, 0
    for _ in range(17):
        over = y >> 31
        log = 2 * log + over
        y >>= over
        y = y * y >> 30
    return log


_LOG2_TABLE = [_log2_of_mantissa(i) for i in range(257)]


def log2_fixed(x: int) -> int:
    """log2(x) in units of 2^-16, for x >= 1."""
    k = x.bit_length() - 1
    fraction = (x >> (k - 16) if k >= 16 else x << (16 - k)) & 0xFFFF
    low, high = _LOG2_TABLE[fraction >> 8], _LOG2_TABLE[(fraction >> 8) + 1]
    return (k << 16) + low + ((high - low) * (fraction & 0xFF) >> 8)


def sample_positions(n: int) -> Iterator[int]:
    """All words, or runs of 64 of them, one at a hashed place in each of many equal strata."""
    n_runs, n_strata = n // SAMPLE_RUN, max(SAMPLE_LEAST, n // 32) // SAMPLE_RUN
    if n_runs <= n_strata:
        yield from range(n)
        return
    for stratum in range(n_strata):
        jitter = (stratum * 2654435761 % (1 << 32)) >> 16
        run = (stratum << 16 | jitter) * n_runs // n_strata >> 16
        yield from range(run * SAMPLE_RUN, (run + 1) * SAMPLE_RUN)


@dataclass(frozen=True)
class Group:
    """Deltas of neighbouring keys: how many are near each magnitude, by sign."""

    first_key: int
    counts: Counter[tuple[int, bool]]  # (five leading bits and zeros, is it negative)

    def __add__(self, other: "Group") -> "Group":
        return Group(self.first_key, self.counts + other.counts)


def _rounded(magnitude: int) -> int:
    step = max(magnitude.bit_length() - 5, 0)
    return magnitude >> step << step


def groups_by_key(words: Words, source: Buffer, base: Buffer) -> list[Group]:
    sources, bases = words.read(source), words.read(base)
    by_key: dict[int, Counter[tuple[int, bool]]] = {}
    for i in sample_positions(len(sources)):
        delta = words.delta(sources[i], bases[i])
        counts = by_key.setdefault(words.key(bases[i]), Counter())
        counts[_rounded(delta if delta >= 0 else ~delta), delta < 0] += 1
    return [Group(key, by_key[key]) for key in sorted(by_key)]


@dataclass(frozen=True)
class Coding:
    """How a group would be coded with one shift, and about how many bits that takes."""

    shift: int
    counts: tuple[int, ...]  # one a symbol
    bits: int


def coding_with(group: Group, shift: int, scale: int, table_log: int, words: Words) -> Coding:
    """scale: words of the frame for each one of the sample."""
    counts = [0] * N_SYMBOLS
    for (magnitude, is_negative), count in group.counts.items():
        counts[_symbol(magnitude >> shift, is_negative)] += count
    used = [symbol for symbol in range(N_SYMBOLS) if counts[symbol]]
    log_total = log2_fixed(sum(counts))
    bits = 0
    for symbol in used:
        raw = words.bits if symbol == ESCAPE else shift + cell_width_bits((symbol - 1) // 2)
        bits += counts[symbol] * (log_total - log2_fixed(counts[symbol]) + (raw << 16))
    table_bits = 16 + table_log // 2 * len(used) + 4 * (used[-1] + 1)
    return Coding(shift, tuple(counts), (bits >> 16) * scale + table_bits)


def _symbol(magnitude: int, is_negative: bool) -> int:
    if magnitude >= N_LINEAR << N_OCTAVES:
        return ESCAPE
    cell = max(cell for cell in range(N_CELLS) if cell_start(cell) <= magnitude)
    return 1 + 2 * cell + is_negative


def shifts_for(group: Group) -> range:
    """Around the shift that puts three quarters of the deltas in linear cells, and far below."""
    total, below = sum(group.counts.values()), 0
    for magnitude, is_negative in sorted(group.counts):
        below += group.counts[magnitude, is_negative]
        if 4 * below >= 3 * total:
            break
    width = magnitude.bit_length()
    return range(max(width - 12, 0), max(width - 2, 0) + 1)


def merge_groups(
    groups: list[Group], scale: int, table_log: int, words: Words
) -> list[tuple[Group, Coding]]:
    """Neighbours in one, the pair that costs least first, while they are too many or it pays."""
    groups = list(groups)
    while len(groups) > MAX_GROUPS:  # keys of little use first
        sizes = [sum(group.counts.values()) for group in groups]
        i = min(range(len(groups) - 1), key=lambda i: (sizes[i] + sizes[i + 1], i))
        groups[i : i + 2] = [groups[i] + groups[i + 1]]

    def code(group: Group, shifts: range) -> Coding:
        codings = [coding_with(group, shift, scale, table_log, words) for shift in shifts]
        return min(codings, key=lambda coding: coding.bits)

    codings = [code(group, shifts_for(group)) for group in groups]
    while len(groups) > 1:
        pairs = []
        for i in range(len(groups) - 1):
            low, high = sorted((codings[i].shift, codings[i + 1].shift))
            pairs.append(code(groups[i] + groups[i + 1], range(low, high + 1)))
        costs = [pair.bits - codings[i].bits - codings[i + 1].bits for i, pair in enumerate(pairs)]
        i = costs.index(min(costs))
        if len(groups) <= MAX_CONTEXTS and costs[i] > 0:
            break
        groups[i : i + 2] = [groups[i] + groups[i + 1]]
        codings[i : i + 2] = [pairs[i]]
    return list(zip(groups, codings, strict=True))


def normalized(counts: tuple[int, ...], table_log: int) -> tuple[int, ...]:
    """Counts scaled to a sum of 2^table_log, each at least 1 where the count is; the escape always.

    Rounding is made good one step at a time, where it gains most or costs least.
    """
    total = sum(counts)
    scaled = [max(1, ((c << table_log) + total // 2) // total) if c else 0 for c in counts]
    scaled[ESCAPE] = max(scaled[ESCAPE], 1)

    def change(symbol: int, smaller: int) -> int:
        return counts[symbol] * (log2_fixed(smaller + 1) - log2_fixed(smaller))

    while (left := (1 << table_log) - sum(scaled)) > 0:
        symbols = [s for s in range(N_SYMBOLS) if scaled[s] > 0]
        scaled[max(symbols, key=lambda s: (change(s, scaled[s]), -s))] += 1
    while left < 0:
        symbols = [s for s in range(N_SYMBOLS) if scaled[s] > 1]
        scaled[min(symbols, key=lambda s: (change(s, scaled[s] - 1), s))] -= 1
        left += 1
    return tuple(scaled)


def plan_model(words: Words, source: Buffer, base: Buffer) -> tuple[Model, int]:
    """The model for a frame of at least one word, and about how many bytes it will take."""
    n = len(source) // (words.bits // 8)
    scale = n // sum(1 for _ in sample_positions(n))
    table_log = min(max(n.bit_length() - 7, 7), 11)
    merged = merge_groups(groups_by_key(words, source, base), scale, table_log, words)
    contexts = tuple(
        Context(
            0 if i == 0 else group.first_key, coding.shift, normalized(coding.counts, table_log)
        )
        for i, (group, coding) in enumerate(merged)
    )
    return Model(table_log, contexts), (sum(coding.bits for _, coding in merged) + 7) // 8

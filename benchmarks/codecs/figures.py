"""The figures that the codecs promise, held against what a run measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.codecs.ours import JUDGED, OURS, STANDALONE
from benchmarks.pairs.recipes import Pair
from benchmarks.rivals.all import RIVALS

ENCODE, DECODE = "encode", "decode"
FAST = OURS[0].name


@dataclass(frozen=True)
class Size:
    pair: Pair
    dtype: str
    codec: str
    file_bytes: int
    stored_bytes: int

    @property
    def percent(self) -> float:
        return 100 * self.stored_bytes / self.file_bytes


@dataclass(frozen=True)
class Speed:
    """MB/s of CPU time: median, slowest, fastest. kernels: which of ours; rivals have none."""

    pair: Pair
    dtype: str
    codec: str
    kernels: str
    way: str
    mb_per_s: float
    slowest: float
    fastest: float


@dataclass(frozen=True)
class Figure:
    """One promise. found None: this run measured nothing that it speaks of."""

    name: str
    wanted: float
    found: float | None
    is_at_least: bool
    unit: str
    where: str = ""

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "not measured"
        is_kept = self.found >= self.wanted if self.is_at_least else self.found <= self.wanted
        return "pass" if is_kept else "fail"


class Sizes:
    """The sizes of a run, by pair, dtype and codec."""

    def __init__(self, sizes: Iterable[Size]) -> None:
        self._by_key = {(size.pair.name, size.dtype, size.codec): size for size in sizes}
        self.pairs = list({size.pair.name: size.pair for size in self._by_key.values()}.values())

    def get(self, pair: Pair, dtype: str, codec: str) -> Size | None:
        return self._by_key.get((pair.name, dtype, codec))

    def best_rival(self, pair: Pair, dtype: str) -> Size | None:
        found = [self.get(pair, dtype, rival.name) for rival in RIVALS]
        return min((size for size in found if size), key=lambda s: s.stored_bytes, default=None)

    def saving(self, pair: Pair, dtype: str) -> float | None:
        """By how many % ours is smaller than the smallest rival."""
        ours, rival = self.get(pair, dtype, JUDGED.name), self.best_rival(pair, dtype)
        if ours is None or rival is None:
            return None
        return 100 * (1 - ours.stored_bytes / rival.stored_bytes)

    def savings(self, pairs: Sequence[Pair], dtype: str) -> dict[str, float]:
        found = {pair.name: self.saving(pair, dtype) for pair in pairs}
        return {name: saving for name, saving in found.items() if saving is not None}


def size_figures(sizes: Sizes, adapter_bytes: dict[str, int]) -> list[Figure]:
    tuned = [pair for pair in sizes.pairs if pair.is_trained]
    full = [pair for pair in tuned if pair.method == "full"]
    # AdamW leaves the rows of unseen tokens to the decay alone.
    decayed = [
        pair for pair in tuned if pair.method in ("full", "extended") and pair.weight_decay > 0
    ]
    figures = [
        _least(
            "BF16: every fine-tune smaller than the smallest rival by", 15, sizes, tuned, "BF16"
        ),
        _mean("BF16: mean over the full fine-tunes", 30, sizes, full, "BF16"),
        _least("F16: every fine-tune smaller than the smallest rival by", 12, sizes, tuned, "F16"),
        _mean("F32: mean over the fine-tunes", 10, sizes, tuned, "F32"),
        _least("F32: every one with decay-only rows", 15, sizes, decayed, "F32"),
    ]
    for pair in tuned:
        ours = sizes.get(pair, "BF16", JUDGED.name)
        if pair.method == "lora" and pair.name in adapter_bytes:
            ratio = None if ours is None else ours.stored_bytes / adapter_bytes[pair.name]
            name = "BF16: bytes of a merged LoRA over those of its adapter"
            figures.append(Figure(name, 2, ratio, False, "times", pair.name))
    for pair in sizes.pairs:
        if not pair.is_trained:
            found = [s for d in ("F32", "F16", "BF16") if (s := sizes.saving(pair, d)) is not None]
            name = f"{pair.method}: no larger than the best rival, in every dtype"
            figures.append(Figure(name, 0, min(found, default=None), True, "%", pair.name))
    return figures


def excess_figure(worst: dict[str, int]) -> Figure:
    """worst: by pair, dtype and effort, bytes beyond any tensor's standalone form and header."""
    where = max(worst, key=worst.__getitem__, default="")
    name = "every tensor, at every effort: bytes beyond its standalone form and the header"
    return Figure(name, 0, worst.get(where), False, "bytes", where)


MIB = 1 << 20
_FEW_BLOCKS_MIB = 8  # a block has at most 1 MiB
_SEARCH_MIB = 128  # beside a frame, as codecs/spec/fm_delta.md allows the search for low rank


def memory_figures(memory: dict[str, dict[str, int]]) -> list[Figure]:
    """memory: by codec, bytes beyond input and output of coding one tensor, one thread."""
    figures: list[Figure] = []
    for codec, way, wanted in (
        (FAST, DECODE, _FEW_BLOCKS_MIB),
        (JUDGED.name, DECODE, _FEW_BLOCKS_MIB),
        (FAST, ENCODE, _FEW_BLOCKS_MIB),
        (JUDGED.name, ENCODE, _SEARCH_MIB),
    ):
        found = memory.get(codec)
        extra = None if found is None else found[f"{way}_bytes"] / MIB
        where = "" if found is None else f"a tensor of {found['tensor_bytes'] / MIB:.0f} MiB"
        name = f"{way}, {codec}: memory beyond input and output"
        figures.append(Figure(name, wanted, extra, False, "MiB", where))
    return figures


# (what, dtype, with prediction, way, codec, wanted with AVX-512); half of it with AVX2.
_SPEEDS = (
    ("without prediction", "BF16", False, DECODE, FAST, 2500),
    ("with prediction", "BF16", True, DECODE, JUDGED.name, 1000),
    ("fast", "BF16", False, ENCODE, FAST, 1000),
    ("default", "BF16", True, ENCODE, JUDGED.name, 300),
    ("without prediction", "F32", False, DECODE, FAST, 2000),
    ("standalone", "BF16", False, DECODE, STANDALONE.name, 2500),
)
_SHARE = {"avx512": 1.0, "avx2": 0.5}


def fastest_by_level(kernels: Sequence[str]) -> dict[str, str]:
    """Of sets of kernels, the slowest first: the fastest for each level of instructions.

    A level is what a set's name begins with: avx512 of avx512_gathers.
    """
    return {_level(name): name for name in kernels}


def _level(kernels: str) -> str:
    return kernels.partition("_")[0]


def speed_figures(speeds: Sequence[Speed], kernels: Sequence[str]) -> list[Figure]:
    """kernels: those this processor has. A figure speaks of the slowest of the timed pairs."""
    figures: list[Figure] = []
    for what, dtype, is_predicted, way, codec, wanted in _SPEEDS:
        for level, share in _SHARE.items():
            found = [
                speed
                for speed in speeds
                if (speed.dtype, speed.way, speed.codec, _level(speed.kernels))
                == (dtype, way, codec, level)
                and (not is_predicted or speed.pair.is_trained)
            ]
            worst = min(found, key=lambda speed: speed.mb_per_s, default=None)
            name = f"{dtype}: {way}, {what}, {level}"
            if worst is None and level not in fastest_by_level(kernels):
                name += " (this processor has none)"
            figures.append(_slowest(name, wanted * share, worst))
    portable = [s for s in speeds if (s.kernels, s.dtype) == ("portable", "BF16")]
    decoding = [s for s in portable if s.way == DECODE]
    # Default is asked for less even of AVX2.
    encoding = [s for s in portable if (s.way, s.codec) == (ENCODE, FAST)]
    for what, found in (("decode", decoding), ("encode, fast", encoding)):
        slowest = min(found, key=lambda speed: speed.mb_per_s, default=None)
        figures.append(_slowest(f"BF16: {what}, portable", 200, slowest))
    for rival, wanted in (("FM-Delta", 70), ("TensorX", 700)):
        found = [s for s in speeds if (s.codec, s.way) == (rival, DECODE)]
        fastest = max(found, key=lambda speed: speed.mb_per_s, default=None)
        figures.append(_slowest(f"the rival {rival} decodes, at best", wanted, fastest))
    return figures


def standalone_figure(sizes: Sizes) -> Figure:
    found = [
        size
        for pair in sizes.pairs
        if (size := sizes.get(pair, "BF16", STANDALONE.name)) is not None
    ]
    largest = max(found, key=lambda size: size.percent, default=None)
    name = "BF16: standalone, size"
    where = "" if largest is None else largest.pair.name
    return Figure(name, 66.4, None if largest is None else largest.percent, False, "%", where)


def _least(name: str, wanted: float, sizes: Sizes, pairs: Sequence[Pair], dtype: str) -> Figure:
    found = sizes.savings(pairs, dtype)
    where = min(found, key=found.__getitem__, default="")
    return Figure(name, wanted, found.get(where), True, "%", where)


def _mean(name: str, wanted: float, sizes: Sizes, pairs: Sequence[Pair], dtype: str) -> Figure:
    found = sizes.savings(pairs, dtype)
    value = mean(found.values()) if found else None
    return Figure(name, wanted, value, True, "%", f"{len(found)} pairs")


def _slowest(name: str, wanted: float, speed: Speed | None) -> Figure:
    where = "" if speed is None else f"{speed.pair.name}, {speed.dtype}"
    return Figure(name, wanted, None if speed is None else speed.mb_per_s, True, "MB/s", where)

"""`make bench-codecs`: our codecs and their rivals on the pairs of benchmarks/pairs.toml.

Prints the tables, writes two CSV files and the sections of docs/benchmarks.md with their picture.
`--quick` measures one pair in small buffers and writes nothing; `--only NAME` measures some pairs;
`--sizes` leaves the speeds out, so that a busy machine will do; `--speeds` measures the pairs that
are timed and leaves the others out.
"""

import argparse
import importlib.util
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.codecs import page
from benchmarks.codecs.figures import (
    DECODE,
    ENCODE,
    Figure,
    Size,
    Sizes,
    Speed,
    excess_figure,
    fastest_by_level,
    memory_figures,
    size_figures,
    speed_figures,
    standalone_figure,
)
from benchmarks.codecs.known_sizes import KnownSizes, version
from benchmarks.codecs.measure import BUFFER_BYTES, REPEATS, Failed, measure
from benchmarks.codecs.ours import JUDGED, OURS, PACKAGES, STANDALONE, Ours
from benchmarks.codecs.threads import threads_figures
from benchmarks.pairs.layout import DEFAULT_CACHE, REPORT, Cache, is_made
from benchmarks.pairs.recipes import DTYPES, RECIPES, Pair, load_recipes
from benchmarks.results_file import print_columns, write_results
from benchmarks.rivals.all import RIVALS
from benchmarks.rivals.rival import Rival
from deltahub.codecs._native import kernel_names
from deltahub.codecs.protocol import Effort

# The whole matrix would take a day: these are timed, in these dtypes; all are measured for size.
TIMED = (
    ("llama-full-1e-5-wd0.01", "BF16"),
    ("llama-full-1e-5-wd0.01", "F32"),
    ("llama-full-1e-5-wd0.01", "F16"),
    ("llama-lora-f32-adapter", "BF16"),
    ("minilm-contrastive-2e-5-wd0.01", "BF16"),
)
ON_PORTABLE = [one for one in TIMED if one[1] == "BF16"]  # of what they are asked
_QUICK_BYTES = 16 << 20


class Bench:
    """One run over some pairs."""

    def __init__(
        self,
        cache: Cache,
        pairs: Sequence[Pair],
        *,
        is_quick: bool,
        has_sizes: bool = True,
        has_speeds: bool = True,
    ) -> None:
        self.cache = cache
        self.pairs = pairs
        self.is_quick = is_quick
        self.has_sizes = has_sizes
        self.has_speeds = has_speeds
        self.repeats = 1 if is_quick else REPEATS
        self.buffer_bytes = _QUICK_BYTES if is_quick else BUFFER_BYTES
        self.dtypes = ("BF16",) if is_quick else DTYPES
        self.sizes: list[Size] = []
        self.speeds: list[Speed] = []
        self.excess: dict[str, int] = {}
        self.memory: dict[str, dict[str, int]] = {}
        self.threads: dict[str, float] = {}
        self.failures: list[str] = []
        self._known = KnownSizes(cache.root / "sizes.json")

    def run(self) -> None:
        self._measure_all_sizes()
        if not self.has_speeds:
            return
        for pair in self.pairs:
            for dtype in self.dtypes:
                if self.is_quick or (pair.name, dtype) in TIMED:
                    self._measure_speeds(pair, dtype)
        first = [pair for pair in self.pairs if self.is_quick or (pair.name, "BF16") in TIMED][:1]
        for pair in first:
            self._measure_threads(pair)

    def _measure_all_sizes(self) -> None:
        """On every core: sizes are the same however busy the machine is."""
        codecs: tuple[Ours | Rival, ...] = (*OURS, STANDALONE, *RIVALS)
        wanted = [
            (pair, dtype, codec)
            for pair in self.pairs
            for dtype in self.dtypes
            for codec in codecs
            if self.has_sizes or (pair.name, dtype) in TIMED
        ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for (pair, dtype, codec), found in zip(
                wanted, pool.map(lambda one: self._size(*one), wanted), strict=True
            ):
                if found is None:
                    continue
                self._add_size(pair, dtype, codec.name, found)
                if codec in OURS:
                    where = f"{pair.name} {dtype}, {codec.name}"
                    self.excess[where] = found["worst_excess_bytes"]

    def _size(self, pair: Pair, dtype: str, codec: Ours | Rival) -> dict[str, Any] | None:
        key = f"{self.cache.pair(pair).name} {dtype} {codec.name} {version(codec)}"
        found = self._known.get(key)
        if found is None:
            found = self._try("size", codec.name, self.cache.files(pair, dtype))
            if found is not None:
                self._known.put(key, found)
        return found

    def _add_size(self, pair: Pair, dtype: str, codec: str, found: dict[str, Any]) -> None:
        size = Size(pair, dtype, codec, found["file_bytes"], found["stored_bytes"])
        self.sizes.append(size)
        print(f"{pair.name} {dtype}, {codec}: {size.percent:.2f} %", flush=True)

    def _measure_speeds(self, pair: Pair, dtype: str) -> None:
        for codec in (*OURS, STANDALONE):
            # The greatest effort takes minutes, and no figure speaks of its speed: one run, here.
            is_slow = codec.effort == Effort.MAX
            if is_slow and not self.is_quick and (pair.name, dtype) != TIMED[0]:
                continue
            for kernels in fastest_by_level(kernel_names()).values():
                is_fastest = kernels == kernel_names()[-1]
                is_plain = kernels == "portable" and (pair.name, dtype) not in ON_PORTABLE
                if is_fastest or not (is_slow or is_plain):
                    repeats = 1 if is_slow else self.repeats
                    self._add_speed(pair, dtype, codec.name, kernels, repeats)
        for rival in RIVALS:
            self._add_speed(pair, dtype, rival.name, "", self.repeats)

    def _add_speed(self, pair: Pair, dtype: str, codec: str, kernels: str, repeats: int) -> None:
        found = self._try(
            "speed",
            codec,
            self.cache.files(pair, dtype),
            kernels=kernels,
            repeats=repeats,
            buffer_bytes=self.buffer_bytes,
        )
        if found is None:
            return
        for way in (ENCODE, DECODE):
            speeds = [found["bytes"] / 1e6 / max(s, 1e-9) for s in found[f"{way}_cpu_s"]]
            speed = Speed(
                pair, dtype, codec, kernels, way, median(speeds), min(speeds), max(speeds)
            )
            self.speeds.append(speed)
            print(f"{pair.name} {dtype}, {codec} {kernels}, {way}: {speed.mb_per_s:.0f} MB/s")

    def _measure_threads(self, pair: Pair) -> None:
        files = self.cache.files(pair, "BF16")
        options = {"repeats": self.repeats, "buffer_bytes": self.buffer_bytes}
        found = self._try("threads", JUDGED.name, files, **options)
        self.threads = {} if found is None else found["wall_s"]
        for codec in (OURS[0], JUDGED):
            taken = self._try("memory", codec.name, files)
            if taken is not None:
                self.memory[codec.name] = taken

    def _try(
        self, what: str, codec: str, files: tuple[Path, Path], kernels: str = "", **options: int
    ) -> dict[str, Any] | None:
        try:
            return measure(what, codec, files, kernels=kernels, **options)
        except Failed as exc:
            self.failures.append(f"{what} of {codec} on {files[1].parent}: {exc}")
            print(self.failures[-1], flush=True)
            return None

    def size_figures(self) -> list[Figure]:
        sizes = Sizes(self.sizes)
        adapters: dict[str, int] = {}
        for pair in self.pairs:
            report = json.loads((self.cache.pair(pair) / REPORT).read_text())
            if "adapter_bytes" in report:
                adapters[pair.name] = report["adapter_bytes"]
        return [
            *size_figures(sizes, adapters), excess_figure(self.excess), standalone_figure(sizes)
        ]  # fmt: skip

    def speed_figures(self) -> list[Figure]:
        return [
            *speed_figures(self.speeds, kernel_names()),
            *threads_figures(self.threads),
            *memory_figures(self.memory),
        ]


def _check_packages() -> None:
    for package in ("zipnn", "pcodec", "openzl"):
        if importlib.util.find_spec(package) is None:
            raise SystemExit(f"{package} is one of the rivals: `make bench-codecs` installs it")


def run(
    cache: Cache,
    names: Sequence[str],
    *,
    is_quick: bool,
    has_sizes: bool,
    has_speeds: bool,
    has_all: bool,
) -> bool:
    """Measures the pairs; whether every figure that was measured is reached."""
    _check_packages()
    pairs = [cache.recipes.pairs[name] for name in names]
    bench = Bench(cache, pairs, is_quick=is_quick, has_sizes=has_sizes, has_speeds=has_speeds)
    bench.run()
    sizes = Sizes(bench.sizes)
    of_sizes = bench.size_figures() if has_sizes else []
    of_speeds = bench.speed_figures() if has_speeds else []
    figures = [*of_sizes, *of_speeds]
    print()
    print_columns(page.SIZE_TITLES, page.size_rows(sizes, bench.dtypes))
    print()
    print_columns(page.SPEED_TITLES, page.speed_rows(bench.speeds))
    print()
    print_columns(page.FIGURE_TITLES, page.figure_rows(figures))
    for failure in bench.failures:
        print(f"FAILED: {failure}")
    if not is_quick:
        sources = _write(bench, sizes, figures)
        command = "make bench-codecs"
        if not (has_sizes and has_speeds):
            command = f"python -m benchmarks.codecs.run --{'sizes' if has_sizes else 'speeds'}"
        if has_all and has_sizes:
            page.write_sizes(sizes, of_sizes, sources, command)
        if has_all and has_speeds:
            page.write_speeds(sizes, bench.speeds, of_speeds, sources, command)
    return not bench.failures and all(figure.verdict != "fail" for figure in figures)


def _write(bench: Bench, sizes: Sizes, figures: Sequence[Figure]) -> list[Path]:
    packages = sorted({*PACKAGES, *(name for rival in RIVALS for name in rival.packages)})
    notes = [f"{codec.name}: {codec.about}" for codec in (*OURS, STANDALONE)]
    notes += [f"{rival.name}: {rival.about}" for rival in RIVALS]
    notes += [
        "stored: ours a pack, its index and a recipe; rivals the header, streams, 4 bytes a stream",
        "MB/s: 10^6 bytes of the fine-tune a CPU second (user + system) of one pinned process",
        f"speeds: median, slowest and fastest of {bench.repeats} after one that does not count, "
        f"over copies of the changed tensors of {bench.buffer_bytes >> 20} MiB or more; "
        "the greatest effort once",
        *(f"failed: {failure}" for failure in bench.failures),
    ]
    rows = page.csv_rows(sizes, bench.speeds, bench.dtypes)
    titles = ["figure", "wanted", "found", "unit", "where", "verdict"]
    held = [dict(zip(titles, row, strict=True)) for row in page.figure_rows(figures)]
    question = "codecs" if bench.has_sizes else "codecs-speeds"
    return [
        write_results(question, rows, packages, notes),
        write_results(f"{question}-figures", held, packages, notes),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="a pair; may be repeated")
    parser.add_argument("--made", action="store_true", help="only pairs that are in the cache")
    parser.add_argument("--quick", action="store_true", help="one pair, one repetition, no files")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--sizes", action="store_true", help="no speeds, threads and memory")
    only.add_argument("--speeds", action="store_true", help="of the pairs that are timed")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    parser.add_argument("--recipes", type=Path, default=RECIPES)
    arguments = parser.parse_args()
    cache = Cache(arguments.cache, load_recipes(arguments.recipes))
    timed = {name for name, _ in TIMED}
    every = [name for name in cache.recipes.pairs if name in timed or not arguments.speeds]
    names = arguments.only or every
    missing = [name for name in names if not is_made(cache.pair(cache.recipes.pairs[name]))]
    if arguments.made or arguments.quick:
        names = [name for name in names if name not in missing]
    elif missing:
        parser.error(f"not in the cache: {', '.join(missing)}; `make bench-pairs` trains them")
    if not names:
        parser.error("no pair is in the cache; `make bench-pairs` trains them")
    if arguments.quick:
        names = names[:1]
    is_reached = run(
        cache,
        names,
        is_quick=arguments.quick,
        has_sizes=not arguments.speeds,
        has_speeds=not arguments.sizes,
        has_all=names == every,
    )
    raise SystemExit(0 if is_reached else 1)


if __name__ == "__main__":
    main()

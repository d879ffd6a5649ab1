"""libFuzzer on each native decoder, and how much of the decoders' lines its corpus reaches.

    fuzz.py run      looks for inputs that break a decoder, FUZZ_SECONDS (600) for each
    fuzz.py merge    adds those found inputs to tests/corpus that increase its coverage
    fuzz.py coverage replays tests/corpus; fails where it reaches below 95 % of a file's lines

Needs clang: FUZZ_CXX (clang++), and llvm-profdata and llvm-cov of its version beside it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.codecs.native_builds import (
    CORPUS,
    DECODERS,
    KERNELS,
    NATIVE,
    SANITIZED,
    STANDARD,
    built,
    run,
)

BUILD = NATIVE.parents[1] / "build" / "fuzz"
FOUND = BUILD / "found"
LEAST_PERCENT = 95.0

# Not counted, because they are not used in decoding: whole files, and functions by name.
OTHER_FILES = {
    "base/parallel.hpp", "base/short_floats.hpp", "coder/histograms.hpp", "coder/stream_writer.hpp",
    "fm_delta/encode.hpp", "fm_delta/plan.hpp", "frames/delta_frame.hpp",
    "frames/standalone_bound.hpp", "fuzz/block_runs.hpp", "fuzz/block_tables.hpp",
    "fuzz/decode.cpp", "fuzz/input.hpp", "kernels/ans/encode.hpp", "kernels/ans/encode_avx2.hpp",
    "kernels/ans/encode_avx512.hpp", "kernels/low_rank/estimate_classes.hpp",
    "kernels/low_rank/int16_products.hpp", "kernels/low_rank/kernels.hpp",
    "kernels/low_rank/least_squares_step.hpp", "kernels/low_rank/normal_equations.hpp",
    "kernels/low_rank/projection.hpp", "kernels/low_rank/targets.hpp",
    "kernels/low_rank/transpose.hpp", "kernels/magnitude_bins.hpp", "kernels/table_cost.hpp",
    "low_rank/entropy_model.hpp", "low_rank/factors.hpp", "low_rank/int16_rows.hpp",
    "low_rank/least_squares/fit.hpp", "low_rank/least_squares/noise.hpp",
    "low_rank/least_squares/passes.hpp", "low_rank/least_squares/plan.hpp",
    "low_rank/least_squares/product.hpp", "low_rank/measured_pair.hpp", "low_rank/outliers.hpp",
    "low_rank/pair_search.hpp", "low_rank/quantize_factors.hpp", "low_rank/randomized_svd.hpp",
    "low_rank/search.hpp", "low_rank/size_estimate.hpp", "low_rank/thorough_search.hpp",
    "low_rank/widened_floats.hpp", "neuzip/plan.hpp", "planner/class_counts.hpp",
    "planner/context_clustering.hpp", "planner/delta_bins.hpp", "planner/planner.hpp",
    "planner/sample.hpp", "planner/sampled_ranges.hpp", "planner/scales.hpp",
    "planner/weight_decay_rows.hpp",
}  # fmt: skip
ENCODER_FUNCTIONS = {
    "kernels/ans/alphabet.hpp": {"cell_of", "symbol_of_row"},
    "fm_delta/decode.hpp": {"set_column_scales", "set_decay_steps"},
    "frames/delta_codec.hpp": {
        "DeltaEncoder", "DeltaEncoderOf", "low_rank_of", "make_delta_encoder",
        "estimate_delta_bytes",
        "common_stride",
    },
    "kernels/dispatch.hpp": {"are_gathers_fast", "chosen_search", "has_fast_gathers"},
    "kernels/ans/table_entries.hpp": {"packed_row"},
    "frames/float_codec.hpp": {
        "FloatEncoder", "FloatEncoderOf", "make_float_encoder", "estimate_float_bytes",
        "with_float_plan",
    },
    "kernels/simd/table_gathers_avx512.hpp": {"StateIndices", "states", "rows_of_lanes"},
    "kernels/kernels.cpp": {"bins", "row_indices", "deltas", "sizes"},
    "kernels/simd/lanes_avx512.hpp": {"keep_here"},
    "base/aligned_memory.hpp": {"UnsetLineAllocator", "construct"},
    "kernels/simd/table_loads_avx512.hpp": {
        "elements_at", "elements_of_eight", "lanes", "StateIndices", "states", "rows_of_lanes",
    },
    "neuzip/neuzip.hpp": {"FloatEncodingTable"},
    "kernels/ans/bit_stream.hpp": {"ForwardBits"},
    "fm_delta/stride.hpp": {"common_stride", "divide_by_stride"},
    "coder/tables.hpp": {"append_rows", "tables"},
    "base/words.hpp": {"delta", "sign_extended", "sign_mask", "split", "step"},
}  # fmt: skip
# Functions that only some sets of kernels use in decoding.
UNUSED_BY_AVX512 = {"entries_at", "keep_in_memory", "low_bits"}
UNUSED_IN = {"avx512": UNUSED_BY_AVX512, "avx512_gathers": UNUSED_BY_AVX512 | {"pair_of"}}


def tool(name: str) -> str:
    """A tool of the version of clang: the one beside the compiler, after following links."""
    beside = Path(compiler()).resolve().parent / name
    return str(beside) if beside.exists() else required(name)


def required(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        sys.exit(f"there is no {name}: install clang and llvm, or set FUZZ_CXX=/path/to/clang++")
    return found


def compiler() -> str:
    return required(os.environ.get("FUZZ_CXX", "clang++"))


def build_fuzzers() -> None:
    for decoder in DECODERS:
        (FOUND / decoder).mkdir(parents=True, exist_ok=True)
    programs = {
        decoder: ("fuzz/decode.cpp", ["-O1", "-fsanitize=fuzzer", f"-DDELTAHUB_FUZZ={decoder}"])
        for decoder in DECODERS
    }
    built(compiler(), BUILD, programs, [*SANITIZED, "-g1"], ["-fsanitize=fuzzer-no-link"])


def fuzz(seconds: int) -> None:
    build_fuzzers()
    for decoder in DECODERS:
        command = [
            str(BUILD / decoder), f"-max_total_time={seconds}", "-max_len=8000", "-timeout=20",
            "-print_final_stats=1", f"-artifact_prefix={BUILD / decoder}-",
            str(FOUND / decoder), str(CORPUS / decoder),
        ]  # fmt: skip
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit(f"{decoder} failed on an input, which is kept: {BUILD / decoder}-*")


def merge() -> None:
    build_fuzzers()
    for decoder in DECODERS:
        run([BUILD / decoder, "-merge=1", CORPUS / decoder, FOUND / decoder])


# --- coverage

PROGRAM = "replay"
Spot = tuple[str, int, int]  # a function: the name of its file, and where it begins
Span = tuple[int, int, int, int, int]  # first line and column, last ones, and the kind of region
CODE, GAP = 0, 3


class Coverage:
    """How often each region of code in one object was run, function by function."""

    def __init__(self, exported: dict[str, Any], skipped: set[str]) -> None:
        self.functions: dict[Spot, Counter[Span]] = defaultdict(Counter)
        self.n_runs: Counter[Spot] = Counter()
        functions = exported["data"][0]["functions"]
        names = demangled([function["name"] for function in functions])
        for function, name in zip(functions, names, strict=True):
            path = Path(function["filenames"][0]).resolve()
            if not path.is_relative_to(NATIVE.resolve()):
                continue
            file = path.relative_to(NATIVE.resolve()).as_posix()
            if not is_decoding(file, name, skipped):
                continue
            regions = [region for region in function["regions"] if region[5] == 0]
            spot = file, regions[0][0], regions[0][1]
            self.n_runs[spot] += function["count"]
            for *place, times, _, _, kind in regions:
                if kind in (CODE, GAP):
                    self.functions[spot][(*place, kind)] += times

    def lines(self, spots: set[Spot]) -> dict[str, dict[int, bool]]:
        """Which lines of these functions were run, by file."""
        regions: dict[str, Counter[Span]] = defaultdict(Counter)
        for spot in spots & self.functions.keys():
            regions[spot[0]].update(self.functions[spot])
        return {file: covered_lines(spans) for file, spans in sorted(regions.items())}


def is_decoding(file: str, function: str, skipped: set[str]) -> bool:
    """Whether a function is counted; function: its name as in C++, with its scopes."""
    names = set(re.findall(r"\w+", function))
    return file not in OTHER_FILES and not (ENCODER_FUNCTIONS.get(file, set()) | skipped) & names


def check_names() -> None:
    """Every excluded file and function must exist."""
    for file in OTHER_FILES | ENCODER_FUNCTIONS.keys():
        text = (NATIVE / file).read_text()
        for name in ENCODER_FUNCTIONS.get(file, set()):
            assert re.search(rf"\b{name}\b", text), f"{file} has no {name}"


def covered_lines(regions: Counter[Span]) -> dict[int, bool]:
    """As llvm-cov counts: a line was run if a region that begins on it was run, or the innermost
    region around its start."""
    ordered = sorted(regions, key=lambda span: (span[0], span[1], -span[2], -span[3]))
    lines = {}
    for line in {n for span in ordered for n in range(span[0], span[2] + 1)}:
        around = [span for span in ordered if span[0] < line <= span[2]]
        counted = [span for span in ordered if span[0] == line and span[4] == CODE] + around[-1:]
        lines[line] = any(regions[span] > 0 for span in counted)
    return lines


def demangled(names: list[str]) -> list[str]:
    """Demangled names, without the file name that precedes those of static functions."""
    plain = "\n".join(name.rpartition(":")[2] for name in names)
    command = [tool("llvm-cxxfilt")]
    done = subprocess.run(command, input=plain, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def counted_in(name: str, coverages: dict[str, Coverage]) -> set[Spot]:
    """The functions that count in one object.

    A function that only the program runs counts there (in kernels the compiler may have evaluated
    it). A function that any set of kernels runs counts in every set. A function that nothing
    runs counts in every object that has it.
    """
    spots = set()
    for spot in coverages[name].functions:
        runners = {other for other, coverage in coverages.items() if coverage.n_runs[spot] > 0}
        is_kernels = runners > {PROGRAM, "portable"} or (runners and PROGRAM not in runners)
        owners = {*KERNELS} if is_kernels else runners & {PROGRAM}
        if not runners or name in owners | (runners & {PROGRAM}):
            spots.add(spot)
    return spots


def replayed() -> dict[str, Coverage]:
    """The coverage of a replay of the corpus, by object."""
    folder = BUILD / "coverage"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    flags = [STANDARD, "-fprofile-instr-generate", "-fcoverage-mapping"]
    objects = built(compiler(), folder, {PROGRAM: ("fuzz/decode.cpp", ())}, flags)
    for decoder in DECODERS:
        files = sorted((CORPUS / decoder).iterdir())
        profile = {"LLVM_PROFILE_FILE": str(folder / f"{decoder}.profraw")}
        command = [str(folder / PROGRAM), decoder, "1", "0", *map(str, files)]
        subprocess.run(command, env=os.environ | profile, check=True, timeout=600)
    merged = folder / "all.profdata"
    raw = [str(folder / f"{decoder}.profraw") for decoder in DECODERS]
    run([tool("llvm-profdata"), "merge", "-sparse", *raw, "-o", merged])
    export = [tool("llvm-cov"), "export", f"-instr-profile={merged}"]
    found = {}
    for name, path in objects.items():
        # Ignores warnings of llvm-cov about functions that objects share.
        exported = subprocess.check_output([*export, str(path)], stderr=subprocess.DEVNULL)
        found[name] = Coverage(json.loads(exported), UNUSED_IN.get(name, set()))
    return found


def coverage() -> None:
    check_names()
    coverages = replayed()
    by_object = {name: own.lines(counted_in(name, coverages)) for name, own in coverages.items()}
    print(f"{'line coverage of':20}" + "".join(f"{name:>17}" for name in by_object))
    totals: dict[str, list[bool]] = defaultdict(list)
    too_low = []
    for file in sorted({file for lines in by_object.values() for file in lines}):
        cells = ""
        for name, lines in by_object.items():
            own = lines.get(file, {})
            totals[name] += own.values()
            cells += f"{share([*own.values()]):>17}"
            missed = [line for line, is_covered in own.items() if not is_covered]
            if own and 100 * len(missed) > (100 - LEAST_PERCENT) * len(own):
                too_low.append(f"{file}, {name}: lines {sorted(missed)}")
        print(f"{file:20}{cells}")
    print(f"{'all':20}" + "".join(f"{share(totals[name]):>17}" for name in by_object))
    if too_low:
        sys.exit("\n".join([f"below {LEAST_PERCENT} %:", *too_low]))


def share(lines: list[bool]) -> str:
    return f"{sum(lines)}/{len(lines)} {100 * sum(lines) / len(lines):5.1f} %" if lines else "-"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run"]:
            fuzz(int(os.environ.get("FUZZ_SECONDS", "600")))
        case ["merge"]:
            merge()
        case ["coverage"]:
            coverage()
        case _:
            sys.exit(__doc__)

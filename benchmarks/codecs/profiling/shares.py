"""Where the CPU time of one codec goes on one pair, by what the sampled functions do:
`python -m benchmarks.codecs.profiling.shares encode "deltahub fast" BASE FINE_TUNE`, which needs
perf.

Prints, for each kind of work, its share and its nanoseconds a byte of the fine-tune. Nanoseconds
are user and system CPU time of one pinned process, as in the tables.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.codecs.figures import DECODE, ENCODE
from benchmarks.codecs.measure import codec_named, cpu_s, decode_tensor
from benchmarks.codecs.tensors import PairOfFiles
from benchmarks.results_file import print_columns

_BUFFER_BYTES: Final = 64 << 20
_SAMPLES_A_SECOND: Final = 2000
_NAME_WIDTH: Final = 120  # of templates' names, whose ends tell little
# The first that matches the library or the function tells what the time went for.
KINDS: Final = (
    ("checksums", r"XXH|checksum"),
    ("zstd, tried on samples", r"backend_c"),
    ("Python around the blocks", r"libpython|bin/python|_struct|_bisect"),
    ("the system: pages and copies", r"kernel\.kallsyms"),
    (
        "search: linear algebra",
        r"openblas|_umath|libm\.so|multiply_|add_squares|diagonalize|interleave|::quantize|"
        r"::energy|RandomizedSvd|IntegerRows|Components<|ThinProducts|FittedProduct|Eigenvectors",
    ),
    ("memory: moved, filled, allocated", r"libc\.so|libstdc\+\+"),
    (
        "tables",
        r"for_each_state|DecodingTables|append_rows|normalized|parse_|write_fields|"
        r"read_frequencies|DeltaEncodingTables::|BitReader|BitWriter",
    ),
    (
        "planning",
        r"Planner|Sample|cluster|bits_with_own_table|::sizes<|::bins<|ScaleSums|RowDecay|decay_of|decay_rows|Group|"
        r"level_candidates|log2_fixed|cost_of|entropy|FloatPlan|float_bound|zstd_bound|plan_floats|plan_table|count_leading_bits|count_exponents|_sort",
    ),
    (
        "search: estimates and differences",
        r"ResidualEntropy|SizeEstimate|SymbolCounts|estimated_bits|weighted_residuals|"
        r"RefinementPasses|IntegerProduct|QuantizedComponents|LeastSquares|least_squares|StepSolver|"
        r"MeasuredPair|RoundingNoise|Search|subtract|factor_bits|greatest|"
        r"whiten|::keys<|factor_keys|::integers<|Squares",
    ),
    ("prediction: product and sum", r"product|::predict\w*<|RightFactor"),
    (
        "contexts and classes",
        r"contexts|::(fast_)?row_indices|FrameModel|decode_block|decode_two_blocks|encode_block",
    ),
    (
        "symbols: states and bits",
        r"::decode_(symbols|two_streams|rounds|rounds_of_two)<|::encode_(symbols|rounds|packed_rounds)<|"
        r"elements_of_lanes|Reader<|RoundWriter<|::begin\(|finish_block|StreamWriter",
    ),
    ("differences and words", r"::apply<|::deltas<|undo"),
    ("standalone: words", r"::join<|float_|FloatEncodingTable|neuzip|split_|join_"),
    ("Python around the blocks", r"nanobind|\[nb_"),
)


def kind_of(line: str) -> str:
    """Of a line that names library and function."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, line)), "other")


def _work(way: str, codec_name: str, files: tuple[Path, Path], seconds: float) -> None:
    """Prints `ready`, waits for a line, then codes for so many CPU seconds and says ns a byte."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    codec = codec_named(codec_name)
    tensors = PairOfFiles.load(*files).buffers(_BUFFER_BYTES)
    outs = [np.ones_like(tensor.words) for tensor in tensors]
    encoded = [codec.encode(tensor) for tensor in tensors]
    print("ready", flush=True)
    sys.stdin.readline()
    spent_s, n_bytes = 0.0, 0
    while spent_s < seconds:
        for tensor, streams, out in zip(tensors, encoded, outs, strict=True):
            if way == ENCODE:
                took_s, _ = cpu_s(lambda tensor=tensor: codec.encode(tensor))
            else:
                took_s, _ = cpu_s(
                    lambda streams=streams, tensor=tensor, out=out: decode_tensor(
                        codec, streams, tensor, out
                    )
                )
            spent_s += took_s
            n_bytes += tensor.words.nbytes
    print(spent_s * 1e9 / n_bytes, flush=True)


def functions(way: str, codec: str, files: tuple[Path, Path], seconds: float) -> dict[str, float]:
    """Nanoseconds a byte, by library and function. SystemExit where perf may not look."""
    command = [sys.executable, "-m", __spec__.name, way, codec, *map(str, files)]
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/perf.data"
        worker = subprocess.Popen(
            [*command, "--seconds", str(seconds), "--work"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        assert worker.stdin is not None
        assert worker.stdout is not None
        if worker.stdout.readline() != "ready\n":
            raise SystemExit("the codec did not get as far as coding")
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(_SAMPLES_A_SECOND)]
        try:
            perf = subprocess.Popen([*record, "-p", str(worker.pid), "-o", data])
        except FileNotFoundError:
            worker.kill()
            raise SystemExit("perf is not here: install linux-perf") from None
        worker.stdin.write("\n")
        worker.stdin.flush()
        ns_a_byte = float(worker.stdout.readline())
        worker.wait()
        if perf.wait() != 0:
            raise SystemExit("perf could not look at the process: see perf_event_paranoid")
        report = subprocess.run(
            ["perf", "report", "-q", "-i", data, "--sort", "dso,sym", "-g", "none"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    found: dict[str, float] = {}
    for line in report.splitlines():
        if share := re.match(r"\s*([\d.]+)%\s+(.*)", line):
            found[share[2]] = found.get(share[2], 0) + float(share[1]) / 100 * ns_a_byte
    return found


def by_kind(found: dict[str, float]) -> dict[str, float]:
    """What functions take, by kind of work."""
    sums: dict[str, float] = {}
    for function, amount in found.items():
        kind = kind_of(function)
        sums[kind] = sums.get(kind, 0) + amount
    return sums


def print_shares(found: dict[str, float], title: str, unit: str, are_functions: bool) -> None:
    """What functions take, the most first, by kind of work or each with its kind; then the sum."""
    total = sum(found.values())
    if are_functions:
        items = [
            (f"{kind_of(name)}: {name[:_NAME_WIDTH]}", amount) for name, amount in found.items()
        ]
    else:
        items = list(by_kind(found).items())
    rows = [
        [what, f"{amount:.3f}", f"{100 * amount / total:.1f}"]
        for what, amount in sorted(items, key=lambda item: -item[1])
    ]
    print_columns(["work", unit, "%"], [*rows, [title, f"{total:.3f}", "100"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=[ENCODE, DECODE])
    parser.add_argument("codec", help='such as "deltahub fast"')
    parser.add_argument("base", type=Path)
    parser.add_argument("fine_tune", type=Path)
    parser.add_argument("--functions", action="store_true", help="each function, with its kind")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    files = (a.base, a.fine_tune)
    if a.work:
        _work(a.way, a.codec, files, a.seconds)
        return
    found = functions(a.way, a.codec, files, a.seconds)
    title = f"all: {1000 / sum(found.values()):.0f} MB/s"
    print_shares(found, title, "ns a byte", a.functions)


if __name__ == "__main__":
    main()

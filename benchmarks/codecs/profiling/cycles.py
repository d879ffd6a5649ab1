"""Computed, not measured: how many cycles a word the kernels' inner loops take on a processor that
is not at hand, by llvm-mca's model of it: `python -m benchmarks.codecs.profiling.cycles`.

The model knows ports and latencies, but neither caches nor how long a load waits for a store.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.results_file import print_columns

NATIVE: Final = Path(__file__).parents[3] / "codecs" / "native"
_AVX2: Final = ("-mavx2", "-mbmi", "-mbmi2")
# As codecs/native/CMakeLists.txt builds them.
FLAGS: Final = {
    "avx2": _AVX2,
    "avx512": (
        *_AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vbmi", "vbmi2", "vnni")),
        "-mprefer-vector-width=512",
    ),
}  # fmt: skip
_REPEATS: Final = 200
_BF16: Final = "FloatWordsItLi8E"
_F32: Final = "FloatWordsIjLi8E"
# Prediction is called for 32 words at a time; the model is given a loop of nothing but such calls.
_PREDICTION: Final = """
#include "kernels/kernels.cpp"
DELTAHUB_BEGIN
void sum_normal(const std::uint8_t* words, const std::int32_t* product, std::size_t n, int floor,
               std::uint8_t* out, std::uint32_t* outside) {
  for (std::size_t j = 0; j < n; ++j)
    outside[j] = predict_normal<Bf16Words>(words + 64 * j, product + 32 * j, floor, out + 64 * j);
}
void sum_fast(const std::uint8_t* words, const std::int32_t* product, std::size_t n, int floor,
              std::uint8_t* out, std::uint32_t* outside) {
  const FastPrediction<Bf16Words> fast(floor);
  for (std::size_t j = 0; j < n; ++j)
    outside[j] = fast.predict(words + 64 * j, product + 32 * j, out + 64 * j);
}
#ifdef __AVX512F__
void sum_scaled(const std::uint8_t* words, const std::int32_t* product, std::size_t n, int floor,
                std::uint8_t* out, std::uint32_t* outside) {
  const ScaledBf16 scaled(floor);
  for (std::size_t j = 0; j < n; ++j)
    outside[j] = scaled.predict(words + 64 * j, product + 32 * j, out + 64 * j);
}
#endif
DELTAHUB_END
"""


@dataclass(frozen=True)
class Loop:
    """The shortest loop of a function that has an instruction."""

    title: str
    function: str  # within the symbol's name
    instruction: str
    words: int  # that one turn makes


LOOPS: Final = {
    "avx2": (
        Loop("BF16 contexts", f"contextsINS0_10{_BF16}", "vpshufb", 32),
        Loop("BF16 decode", "decode_symbolsItE", "vpshufb", 32),
        Loop("BF16 apply", f"applyINS0_10{_BF16}", "ymm", 16),
        Loop("F32 contexts", f"contextsINS0_10{_F32}", "vpshufb", 32),
        Loop("F32 decode", "decode_symbolsIjE", "vpshufb", 32),
        Loop("F32 apply", f"applyINS0_10{_F32}", "ymm", 8),
        Loop("product, 4 rows", "product_of_rowsILm4E", "vpmaddwd", 4 * 16 * 2),
        Loop("BF16 sums, fast range", "sum_fast", "vcvtdq2ps", 32),
        Loop("BF16 sums, normal path", "sum_normal", "vpsravd", 32),
        Loop("BF16 join", f"joinINS0_10{_BF16}", "ymm", 16),
        Loop("encode BF16: deltas", f"deltasINS0_10{_BF16}", "ymm", 16),
        Loop("encode BF16: row indices", "row_indicesItE", "vpackusdw", 16),
        Loop("encode BF16: symbols", "encode_symbolsItE", "vpsllvq", 8),
    ),
    "avx512": (
        Loop("BF16 contexts", f"contextsINS0_10{_BF16}", "vperm[it]2w", 32),
        Loop("BF16 decode, two blocks", "decode_rounds_of_twoItE", "vpsadbw", 64),
        Loop("BF16 apply", f"applyINS0_10{_BF16}", "zmm", 32),
        Loop("F32 contexts", f"contextsINS0_10{_F32}", "vperm[it]2w", 32),
        Loop("F32 decode, two blocks", "decode_rounds_of_twoIjE", "vpsadbw", 64),
        Loop("F32 apply", f"applyINS0_10{_F32}", "zmm", 16),
        Loop("product, 4 rows", "product_of_rowsILm4E", "vpdpwssd", 4 * 32 * 2),
        Loop("BF16 sums, fast range", "sum_fast", "vcvtdq2ps", 32),
        Loop("BF16 sums, scaled path", "sum_scaled", "vcvtdq2ps", 32),
        Loop("BF16 sums, normal path", "sum_normal", "vpsravd", 32),
        Loop("BF16 join", f"joinINS0_10{_BF16}", "zmm", 32),
        Loop("encode BF16: deltas", f"deltasINS0_10{_BF16}", "zmm", 32),
        Loop("encode BF16: row indices", "row_indicesItE", "vpermb", 32),
        Loop("encode BF16: symbols", "encode_packed_roundsItE", "vpblendd", 32),
    ),
}


def loops_in(assembly: str, function: str) -> Iterator[list[str]]:
    """The instructions of every loop of a function: from a label to a jump back to it."""
    for symbol in re.finditer(r"\n(_Z[\w.]+):\n(\.LFB.*?)\n\s+\.cfi_endproc", assembly, re.DOTALL):
        if function not in symbol[1]:
            continue
        lines = symbol[2].split("\n")
        labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
        for at, line in enumerate(lines):
            jump = re.match(r"\s+j\w+\s+(\.L\w+)", line)
            if jump and labels.get(jump[1], at) < at:
                turn = lines[labels[jump[1]] : at + 1]
                yield [line for line in turn if re.match(r"\s+[a-z]", line)]


def cycles_of(assembly: str, loop: Loop, mca: Sequence[str]) -> tuple[float, float]:
    """Cycles that a turn takes, and those that its busiest port alone would take."""
    found = [
        lines
        for lines in loops_in(assembly, loop.function)
        if any(re.search(loop.instruction, line) for line in lines)
    ]
    if not found:
        raise SystemExit(f"{loop.title}: this compiler makes no such loop")
    report = subprocess.run(
        [*mca, f"-iterations={_REPEATS}"],
        input="\n".join(min(found, key=len)), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    total = re.search(r"Total Cycles:\s+(\d+)", report)
    ports = re.search(r"Resource pressure per iteration:\n.*\n(.*)\n", report)
    assert total is not None
    assert ports is not None
    return int(total[1]) / _REPEATS, max(float(n) for n in ports[1].split() if n != "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", default="icelake-server", help="a processor that llvm-mca knows")
    parser.add_argument("--cxx", default="g++", help="GCC: of its assembly the loops are found")
    parser.add_argument("--mca", default=shutil.which("llvm-mca") or "llvm-mca-14")
    arguments = parser.parse_args()
    rows = []
    for isa, flags in FLAGS.items():
        with tempfile.NamedTemporaryFile(suffix=".s") as file:
            subprocess.run(
                [
                    arguments.cxx, "-std=c++20", "-O3", "-fPIC", "-ffp-contract=off", "-w", *flags,
                    f"-DDELTAHUB_ISA={isa}", f"-I{NATIVE}", "-S", "-xc++", "-", "-o", file.name,
                ],
                input=_PREDICTION, text=True, check=True,
            )  # fmt: skip
            assembly = Path(file.name).read_text()
        for loop in LOOPS[isa]:
            cycles, busiest = cycles_of(assembly, loop, [arguments.mca, f"-mcpu={arguments.cpu}"])
            per_word = f"{cycles / loop.words:.3f}"
            rows.append([isa, loop.title, f"{cycles:.1f}", f"{busiest:.1f}", per_word])
    print_columns(["kernels", "loop", "cycles a turn", "busiest port", "cycles a word"], rows)


if __name__ == "__main__":
    main()

"""Builds of the native codecs for their fuzzers, with every set of kernels.

A set that this processor cannot run is built with SIMDe, which replaces the instructions by plain
C++; so all sets are tested on every machine. The set with gathers is always built so, because
sanitizers do not see the reads of a gather.
"""

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import simde_py

from deltahub.codecs._native import kernel_names

TESTS = Path(__file__).parents[2]
NATIVE = TESTS.parent / "codecs" / "native"
CORPUS = TESTS / "corpus"
DECODERS = ("deltas", "floats", "runs", "tables")

STANDARD = "-std=c++20"
SANITIZED = [STANDARD, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# The flags of codecs/native/CMakeLists.txt.
AVX2 = ["-mavx2", "-mbmi", "-mbmi2"]
AVX512 = ["f", "bw", "dq", "vl", "vbmi", "vbmi2", "vnni"]
KERNELS = {
    "portable": ["-O1"],
    "avx2": ["-O1", *AVX2],
    "avx512": ["-O1", *AVX2, *[f"-mavx512{part}" for part in AVX512]],
}
GATHERS = "avx512_gathers"
KERNELS[GATHERS] = [*KERNELS["avx512"], "-DDELTAHUB_GATHERS"]
# Elements of vectors wrap around, as those of SIMDe are not told to.
EMULATED = [
    f"-I{TESTS / 'support' / 'codecs' / 'emulated'}", f"-I{simde_py.get_include()}",
    "-Og", "-D__AVX2__=1",
    "-fwrapv", "-fno-sanitize=signed-integer-overflow",
]  # fmt: skip
# For the list of kernels: emulated ones always exist.
ALL_ARE_SUPPORTED = "-D__builtin_cpu_supports(feature)=1"

# For fuzzers, whose inputs are short.
FEW_ARE_FILLED = "-DDELTAHUB_MOST_FILLED=256"


def run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, timeout=600)


def flags_of(isa: str) -> list[str]:
    is_seen = isa in kernel_names() and isa != GATHERS
    return KERNELS[isa] if is_seen else emulating(isa)


def emulating(isa: str) -> list[str]:
    gathers = ["-DDELTAHUB_GATHERS"] if isa == GATHERS else []
    return EMULATED if isa == "avx2" else [*EMULATED, "-D__AVX512F__=1", *gathers]


def compiled(compiler: str, source: str, target: Path, flags: Sequence[str]) -> Path:
    """A compiled object file. Without warnings, which the module's own build shows."""
    run([compiler, "-w", f"-I{NATIVE}", *flags, "-c", NATIVE / source, "-o", target])
    return target


def built(
    compiler: str,
    folder: Path,
    programs: Mapping[str, tuple[str, Sequence[str]]],
    flags: Sequence[str],
    kernel_flags: Sequence[str] = (),
) -> dict[str, Path]:
    """Builds each program of (source, its flags), linked with all kernels; and all objects.

    Objects are named after their set of kernels or their program.
    """
    with ThreadPoolExecutor(2) as pool:
        objects = {
            name: pool.submit(
                compiled, compiler, source, folder / f"{name}.o",
                [*flags, "-O0", *own, ALL_ARE_SUPPORTED, FEW_ARE_FILLED],
            )
            for name, (source, own) in programs.items()
        }  # fmt: skip
        objects |= {
            isa: pool.submit(
                compiled, compiler, "kernels/kernels.cpp", folder / f"{isa}.o",
                [*flags, *flags_of(isa), *kernel_flags, f"-DDELTAHUB_ISA={isa}"],
            )
            for isa in KERNELS
        }  # fmt: skip
        made = {name: pending.result() for name, pending in objects.items()}
    kernels = [made[isa] for isa in KERNELS]
    for name, (_, own) in programs.items():
        run([compiler, *flags, *own, "-pthread", made[name], *kernels, "-o", folder / name])
    return made

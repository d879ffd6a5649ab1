"""Builds of the native codecs for their fuzzers, with every set of kernels.

A set that this processor cannot run is built with SIMDe, which emulates the instructions in plain
C++, so that all sets are tested on every processor. The set with gathers is always emulated,
because sanitizers do not check the loads of a gather.
"""

import fcntl
import hashlib
import importlib.metadata
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import simde_py

from deltahub.codecs._native import kernel_names

TESTS = Path(__file__).parents[2]
NATIVE = TESTS.parent / "codecs" / "native"
CORPUS = TESTS / "corpus"
EMULATION = TESTS / "support" / "codecs" / "emulated"
KEPT = TESTS.parent / ".cache" / "native"
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
# -fwrapv, because SIMDe relies on vector elements that wrap around.
EMULATED = [
    f"-I{EMULATION}", f"-I{simde_py.get_include()}",
    "-Og", "-D__AVX2__=1",
    "-fwrapv", "-fno-sanitize=signed-integer-overflow",
]  # fmt: skip
# The dispatch sees every set as supported, because missing sets are emulated.
ALL_ARE_SUPPORTED = "-D__builtin_cpu_supports(feature)=1"

# A low limit, because the inputs of fuzzers are short.
LOW_PADDING_LIMIT = "-DDELTAHUB_MAX_PADDED=256"


def run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, timeout=600)


def flags_of(isa: str) -> list[str]:
    is_seen = isa in kernel_names() and isa != GATHERS
    return KERNELS[isa] if is_seen else emulating(isa)


def emulating(isa: str) -> list[str]:
    gathers = ["-DDELTAHUB_GATHERS"] if isa == GATHERS else []
    return EMULATED if isa == "avx2" else [*EMULATED, "-D__AVX512F__=1", *gathers]


def compiled(compiler: str, source: str, target: Path, flags: Sequence[str]) -> Path:
    """Compiles an object file, without warnings: the build of the module shows them."""
    run([compiler, "-w", f"-I{NATIVE}", *flags, "-c", NATIVE / source, "-o", target])
    return target


def built(
    compiler: str,
    folder: Path,
    programs: Mapping[str, tuple[str, Sequence[str]]],
    flags: Sequence[str],
    kernel_flags: Sequence[str] = (),
) -> dict[str, Path]:
    """Compiles each program, (source, its flags), and links it with all kernels.

    Returns the object files, by the name of the set of kernels or of the program.
    """
    with ThreadPoolExecutor(2) as pool:
        objects = {
            name: pool.submit(
                compiled, compiler, source, folder / f"{name}.o",
                [*flags, "-O0", *own, ALL_ARE_SUPPORTED, LOW_PADDING_LIMIT],
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


def kept(
    compiler: str, programs: Mapping[str, tuple[str, Sequence[str]]], flags: Sequence[str]
) -> Path:
    """A folder with the programs, built once for the same compiler, flags and sources.

    A build takes 100 s of a processor. A second process that asks for it waits for the first.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    folder = KEPT / _state(compiler, repr((programs, flags)))
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in KEPT.glob("*/"):
                shutil.rmtree(old)
            unfinished = KEPT / "unfinished"
            unfinished.mkdir()
            built(compiler, unfinished, programs, flags)
            unfinished.rename(folder)
    return folder


def _state(compiler: str, wanted: str) -> str:
    """A hash of all that a build depends on."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    emulator = importlib.metadata.version("simde-py")
    all_flags = [(isa, flags_of(isa)) for isa in KERNELS]
    digest = hashlib.sha256(repr((version.stdout, emulator, all_flags, wanted)).encode())
    for root in (NATIVE, EMULATION, Path(__file__)):
        for path in sorted([root, *root.rglob("*")]):
            if path.is_file():
                digest.update(f"{path}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()

"""No input makes the native codecs read or write outside of their buffers.

The corpus in tests/corpus was found by `make fuzz` and is replayed here, with some mutations of
each file; every set of kernels must make the same of it. A set that this processor cannot run is
built with SIMDe, which does in plain C++ what the instructions do.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import simde_py

from deltahub.codecs._native import kernel_names
from support.needed import lacking

TESTS = Path(__file__).parents[1]
NATIVE = TESTS.parent / "codecs" / "native"
CORPUS = TESTS / "corpus"
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
FLAGS = ["-std=c++20", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# As codecs/native/CMakeLists.txt builds them.
AVX2 = ["-mavx2", "-mbmi", "-mbmi2"]
AVX512 = ["f", "bw", "dq", "vl", "vbmi", "vbmi2", "vnni"]
KERNELS = {
    "portable": ["-O1"],
    "avx2": ["-O1", *AVX2],
    "avx512": ["-O1", *AVX2, *[f"-mavx512{part}" for part in AVX512], "-Wno-maybe-uninitialized"],
}
EMULATED = [
    f"-I{TESTS / 'support' / 'emulated'}", f"-I{simde_py.get_include()}",
    "-Og", "-Wno-psabi", "-D__AVX2__=1",
]  # fmt: skip
ALL_ARE_SUPPORTED = "-D__builtin_cpu_supports(feature)=1"

pytestmark = pytest.mark.long


def compiled(source: str, target: Path, flags: Sequence[str]) -> str:
    command = [str(COMPILER), *FLAGS, *flags, "-c", str(NATIVE / source), "-o", str(target)]
    subprocess.run(command, check=True, timeout=600)
    return str(target)


def flags_of(isa: str) -> list[str]:
    if isa in kernel_names():
        return KERNELS[isa]
    return [*EMULATED, "-D__AVX512F__=1"] if isa == "avx512" else EMULATED


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both fuzzers."""
    if COMPILER is None:
        lacking("there is no C++ compiler (CXX or g++) to build the fuzzers with")
    folder = tmp_path_factory.mktemp("sanitized")
    with ThreadPoolExecutor(2) as pool:
        fuzzers = [
            pool.submit(compiled, f"{name}.cpp", folder / f"{name}.o", ["-O0", ALL_ARE_SUPPORTED])
            for name in ("fuzz_encode", "fuzz_decode")
        ]
        kernels = [
            pool.submit(
                compiled, "kernels.cpp", folder / f"{isa}.o",
                [f"-DDELTAHUB_ISA={isa}", *flags_of(isa)],
            )
            for isa in KERNELS
        ]  # fmt: skip
        objects = [made.result() for made in kernels]
        for name, fuzzer in zip(("fuzz_encode", "fuzz_decode"), fuzzers, strict=True):
            command = [str(COMPILER), *FLAGS, fuzzer.result(), *objects]
            subprocess.run([*command, "-o", str(folder / name)], check=True, timeout=600)
    return folder


def assert_sound(command: Sequence[str | Path]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (run.returncode, run.stdout) == (0, "sound\n"), run.stderr


def test_every_set_of_kernels_is_under_test() -> None:
    assert set(kernel_names()) <= set(KERNELS)


def test_the_processor_is_asked_for_what_the_kernels_are_built_for() -> None:
    built = set(re.findall(r"-m(avx\w+|bmi\w*)", (NATIVE / "CMakeLists.txt").read_text()))
    asked = set(re.findall(r'cpu_supports\("(\w+)"\)', (NATIVE / "dispatch.hpp").read_text()))
    here = {flag.removeprefix("-m") for flags in KERNELS.values() for flag in flags}
    assert "avx512vbmi2" in built
    assert built == asked == {part for part in here if part.startswith(("avx", "bmi"))}


@pytest.mark.parametrize("decoder", ["deltas", "floats"])
def test_the_corpus_and_mutations_of_it_are_decoded_or_refused(
    programs: Path, decoder: str
) -> None:
    files = sorted((CORPUS / decoder).iterdir())
    assert len(files) > 50
    assert_sound([programs / "fuzz_decode", decoder, "1", "3", *files])


def test_whatever_is_encoded_is_decoded(programs: Path) -> None:
    assert_sound([programs / "fuzz_encode", "1", "30"])

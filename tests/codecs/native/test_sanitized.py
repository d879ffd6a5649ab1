"""No input makes the native codecs read or write outside of their buffers.

The corpus in tests/corpus was found by `make fuzz` and is replayed here, with some mutations of
each file; every set of kernels must give the same result, emulated if this processor lacks it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from deltahub.codecs._native import kernel_names
from support.codecs.native_builds import (
    CORPUS,
    DECODERS,
    KERNELS,
    NATIVE,
    SANITIZED,
    STANDARD,
    compiled,
    emulating,
    kept,
)
from support.needed import lacking

COMPILER = shutil.which(os.environ.get("CXX", "g++"))

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def programs() -> Path:
    """A folder with both fuzzers."""
    if COMPILER is None:
        lacking("there is no C++ compiler (CXX or g++) to build the fuzzers with")
    fuzzers = {f"fuzz_{name}": (f"fuzz/{name}.cpp", ()) for name in ("encode", "decode")}
    return kept(COMPILER, fuzzers, SANITIZED)


def assert_sound(command: Sequence[str | Path]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (run.returncode, run.stdout) == (0, "sound\n"), run.stderr


def test_every_set_of_kernels_is_under_test() -> None:
    assert set(kernel_names()) <= set(KERNELS)


def test_the_processor_is_asked_for_what_the_kernels_are_built_for() -> None:
    built = set(re.findall(r"-m(avx\w+|bmi\w*)", (NATIVE / "CMakeLists.txt").read_text()))
    asked = set(
        re.findall(r'cpu_supports\("(\w+)"\)', (NATIVE / "kernels/dispatch.hpp").read_text())
    )
    here = {flag.removeprefix("-m") for flags in KERNELS.values() for flag in flags}
    assert "avx512vbmi2" in built
    assert built == asked == {part for part in here if part.startswith(("avx", "bmi"))}


@pytest.mark.parametrize("isa", sorted(set(KERNELS) - {"portable"}))
def test_what_kernels_need_can_be_emulated(isa: str, tmp_path: Path) -> None:
    # On a processor with all instruction sets no other test compiles the emulation.
    if COMPILER is None:
        lacking("there is no C++ compiler (CXX or g++) to build the kernels with")
    flags = [STANDARD, *emulating(isa), f"-DDELTAHUB_ISA={isa}", "-fsyntax-only"]
    compiled(COMPILER, "kernels/kernels.cpp", tmp_path / "none.o", flags)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_corpus_and_mutations_of_it_are_decoded_or_refused(
    programs: Path, decoder: str
) -> None:
    files = sorted((CORPUS / decoder).iterdir())
    assert len(files) > 50
    assert_sound([programs / "fuzz_decode", decoder, "1", "3", *files])


def test_whatever_is_encoded_is_decoded(programs: Path) -> None:
    assert_sound([programs / "fuzz_encode", "1", "30"])

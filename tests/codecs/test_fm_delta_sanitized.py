"""Damaged input makes the decoder read and write nothing outside of its buffers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "codecs" / "native"
COMPILER = shutil.which(os.environ.get("CXX", "g++"))


@pytest.mark.long
@pytest.mark.skipif(
    COMPILER is None, reason="no C++ compiler (CXX or g++) to build the fuzzer with"
)
def test_mutated_streams_and_preludes_under_sanitizers(tmp_path: Path) -> None:
    fuzzer = tmp_path / "fuzz_decode"
    flags = ["-std=c++20", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    source = str(NATIVE / "fuzz_decode.cpp")
    subprocess.run([str(COMPILER), *flags, source, "-o", str(fuzzer)], check=True, timeout=300)
    run = subprocess.run(
        [str(fuzzer), "1", "60"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (run.returncode, run.stdout) == (0, "sound\n"), run.stderr

"""The kernels stay within their memory, whatever they are given: AddressSanitizer watches them."""

import subprocess
import sys
from pathlib import Path

from support.cuda.kernels import sanitized_environment

HERE = Path(__file__).parent


def test_neither_damage_nor_golden_vectors_make_a_kernel_leave_its_memory() -> None:
    tests = [HERE / name for name in ("test_damage.py", "test_vectors.py", "test_exports.py")]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            "not two_slices",
            *tests,
        ],
        env=sanitized_environment(),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert "passed" in run.stdout

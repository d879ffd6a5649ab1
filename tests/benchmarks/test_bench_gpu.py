"""`make bench-gpu` without a GPU: it says so; what it checks and measures runs on the emulator."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.gpu.cases import make_cases
from benchmarks.gpu.checks import Gpu, check_cases
from benchmarks.gpu.export_cases import make_export_cases
from benchmarks.gpu.measure import measure, measure_export
from benchmarks.gpu.run import NO_GPU, show
from support.cuda.kernels import EmulatedDevice

SMALL_BYTES = 1 << 15


def gpu() -> Gpu:
    return Gpu(EmulatedDevice(), np)


def test_without_a_gpu_it_ends_with_a_status_and_says_what_is_missing() -> None:
    program = (
        "import sys; sys.modules['cupy'] = None\n"
        "from benchmarks.gpu.run import main\n"
        "sys.exit(main([]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == NO_GPU
    assert 'pip install ".[gpu]"' in run.stderr


def test_it_measures_frames_of_each_kind_and_prints_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = make_cases(SMALL_BYTES)
    check_cases(gpu(), cases)
    speeds = [
        speed
        for case in cases
        for speed in measure(gpu(), case, 2, lambda work: work() or 1e-3, repeats=1)
    ]
    for export in make_export_cases(SMALL_BYTES):
        speeds += measure_export(gpu(), export, lambda work: work() or 1e-3, repeats=1)
    show(speeds)
    assert {speed.row()["aim_gb_per_s"] for speed in speeds} == {None, 300, 400}
    assert all(speed.case.stored_share < 1 for speed in speeds if "raw" not in speed.case.name)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(speeds)
    assert lines[0].split()[0] == "frames"

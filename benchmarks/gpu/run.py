"""`make bench-gpu`: decoding on this machine's GPU.

Checks every golden vector and every case byte for byte, again under compute-sanitizer where that
is installed. Then it prints GB of output a second of frames and of weights of exports, and tokens
a second and memory of models, and writes two CSVs. Without a GPU it says so and ends with status 2.
`--quick` measures small frames and a small model and writes nothing.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.gpu.cases import make_cases
from benchmarks.gpu.checks import Gpu, check_cases, check_exports, check_vectors
from benchmarks.gpu.export_cases import make_export_cases
from benchmarks.gpu.measure import Speed, measure, measure_export
from benchmarks.gpu.models import ModelSpeed, measure_models
from benchmarks.results_file import print_columns, write_results
from deltahub.codecs.errors import NoGpu

NO_GPU = 2  # the exit status
FRAME_BYTES = 64 << 20  # as large as a frame may be
QUICK_BYTES = 4 << 20
FRAMES_A_CALL = (1, 8)
SANITIZER = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "synccheck")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    try:
        gpu = Gpu.of_this_machine()
    except NoGpu as exc:
        print(f"bench-gpu: {exc}", file=sys.stderr)
        return NO_GPU
    n_vectors = check_vectors(gpu) + check_exports(gpu)
    print(f"{n_vectors} golden vectors are decoded or refused as they must")
    sanitized = sanitize()
    size_bytes = QUICK_BYTES if options.quick else FRAME_BYTES
    cases = make_cases(size_bytes)
    check_cases(gpu, cases)
    print(f"{len(cases)} frames are decoded byte for byte", flush=True)
    speeds = [
        speed
        for case in cases
        for n_frames in FRAMES_A_CALL
        for speed in measure(gpu, case, n_frames, seconds_of)
    ]
    for export in make_export_cases(size_bytes):
        speeds += measure_export(gpu, export, seconds_of)
    show(speeds)
    models = measure_models("cuda", seconds_on_clock, os.cpu_count() or 1, is_quick=options.quick)
    show_models(models)
    if not options.quick:
        notes = [f"gpu: {gpu_name()}", f"compute-sanitizer: {sanitized}"]
        write_results("gpu", [speed.row() for speed in speeds], ("numpy",), notes)
        rows = [speed.row() for speed in models]
        write_results("gpu-models", rows, ("torch", "transformers"), notes)
    return 0


def sanitize() -> str:
    """What compute-sanitizer found: nothing, or this program ends with its words."""
    command = shutil.which(SANITIZER)
    if command is None:
        print(f"{SANITIZER} is not installed, so the kernels' memory is not watched", flush=True)
        return "not installed"
    for tool in TOOLS:
        watched = [sys.executable, "-m", "benchmarks.gpu.checks"]
        subprocess.run([command, "--tool", tool, "--error-exitcode", "3", *watched], check=True)
        print(f"{SANITIZER} --tool {tool}: no errors", flush=True)
    return f"{', '.join(TOOLS)} without errors"


def seconds_of(work: Callable[[], None]) -> float:
    """The time of the device from the begin of the work to its end."""
    cuda = importlib.import_module("cupy").cuda
    begin, end = cuda.Event(), cuda.Event()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(cuda.get_elapsed_time(begin, end)) / 1e3


def seconds_on_clock(work: Callable[[], object]) -> float:
    """The time until the GPU has done the work: a model waits for the CPU, too."""
    torch = importlib.import_module("torch")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def gpu_name() -> str:
    """The GPU, its driver's and CuPy's versions."""
    cupy = importlib.import_module("cupy")
    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    return f"{name}, driver for CUDA {runtime.driverGetVersion()}, CuPy {cupy.__version__}"


def show(speeds: list[Speed]) -> None:
    titles = ("frames", "a call", "stored", "verified", "GB/s", "slowest", "fastest", "aim")
    rows = [
        (
            speed.case.name,
            str(speed.n_frames),
            f"{100 * speed.case.stored_share:.1f} %",
            "yes" if speed.is_verified else "no",
            f"{speed.typical:.1f}",
            f"{speed.slowest:.1f}",
            f"{speed.fastest:.1f}",
            str(speed.case.aim) if speed.has_aim else "",
        )
        for speed in speeds
    ]
    print_columns(titles, rows)


def show_models(speeds: list[ModelSpeed]) -> None:
    titles = ("model", "weights, MB", "beside, MB", "new tokens/s", "prompt tokens/s")
    rows = [
        (
            speed.model,
            f"{speed.weights_bytes / 1e6:.1f}",
            "" if speed.beside_bytes is None else f"{speed.beside_bytes / 1e6:.1f}",
            f"{speed.new_tokens_per_s:.1f}",
            f"{speed.prompt_tokens_per_s:.1f}",
        )
        for speed in speeds
    ]
    print_columns(titles, rows)


if __name__ == "__main__":
    sys.exit(main())

"""The emulator finds what would hang a GPU, or give it another result than the CPU."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from support.cuda.kernels import FLAGS, HERE, compiler

KERNELS = """
extern "C" __global__ void divergent(const void*, const void*, const void*, const void*, void*) {
  if (threadIdx.x % 2 == 0) __ballot_sync(0xffffffff, 1);
  else __syncwarp();
}
extern "C" __global__ void lonely(const void*, const void*, const void*, const void*, void*) {
  if (threadIdx.x > 0) __ballot_sync(0xffffffff, 1);
}
extern "C" __global__ void excluded(const void*, const void*, const void*, const void*, void*) {
  __ballot_sync(0x0000ffff, 1);
}
extern "C" __global__ void votes(const void*, const void*, const void*, const void*, void* out) {
  static unsigned shared[256];
  shared[threadIdx.x] = threadIdx.x;
  __syncthreads();
  const unsigned other = shared[(threadIdx.x + 1) % blockDim.x];
  const unsigned odd = __ballot_sync(0xffffffff, int(other % 2));
  const auto swapped = __shfl_xor_sync(0xffffffff, (unsigned long long)(threadIdx.x), 5);
  static_cast<unsigned*>(out)[threadIdx.x] = odd + unsigned(swapped);
}
extern "C" __global__ void races(const void*, const void*, const void*, const void*, void* out) {
  static unsigned shared[256];
  shared[threadIdx.x] = 0;
  __syncthreads();
  shared[threadIdx.x] = threadIdx.x;
  static_cast<unsigned*>(out)[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.cu").write_text(KERNELS)
    files = [HERE / "emulator.cpp", folder / "kernels.cu"]
    command: list[str | Path] = [compiler(), *FLAGS, "-include", HERE / "emulator.hpp", "-x", "c++"]
    subprocess.run([*command, *files, "-o", folder / "kernels.so"], check=True, timeout=300)
    library = ctypes.CDLL(str(folder / "kernels.so"))
    library.emulate.restype = ctypes.c_char_p
    return library


def run(library: ctypes.CDLL, kernel: str, n_threads: int, seed: int = 0) -> tuple[str, list[int]]:
    """(the error or nothing, what each thread stored)."""
    out = (ctypes.c_uint32 * n_threads)()
    arguments = (ctypes.c_void_p * 5)(None, None, None, None, ctypes.addressof(out))
    error = library.emulate(getattr(library, kernel), 1, n_threads, 0, arguments, seed)
    return ("" if error is None else error.decode()), list(out)


@pytest.mark.parametrize(
    ("kernel", "error"),
    [
        ("divergent", "lanes of a warp meet at different intrinsics"),
        ("lonely", "all threads wait for each other"),
        ("excluded", "a lane is not in its own mask"),
    ],
)
def test_a_kernel_that_would_hang_ends_with_its_fault(
    library: ctypes.CDLL, kernel: str, error: str
) -> None:
    assert error in run(library, kernel, 32)[0]


@pytest.mark.parametrize("seed", range(5))
def test_threads_meet_whatever_the_order_of_their_turns(library: ctypes.CDLL, seed: int) -> None:
    error, out = run(library, "votes", 64, seed)
    assert error == ""
    assert out == [0x55555555 + (thread ^ 5) for thread in range(64)]


def test_a_missing_barrier_shows_in_some_order(library: ctypes.CDLL) -> None:
    assert len({tuple(run(library, "races", 32, seed)[1]) for seed in range(5)}) > 1


def test_a_launch_of_more_shared_memory_than_a_gpu_has_fails(library: ctypes.CDLL) -> None:
    arguments = (ctypes.c_void_p * 5)()
    error = library.emulate(library.votes, 1, 32, 1 << 20, arguments, 0)
    assert error == b"no GPU has so much shared memory"

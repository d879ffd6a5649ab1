"""The kernels for GPUs, compiled for this CPU with the emulator, and the device that runs them."""

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from deltahub.codecs.cuda.arrays import CPU
from deltahub.codecs.cuda.cupy_device import FOLDER
from deltahub.codecs.cuda.device import Bytes, Launch, Memory
from support.needed import lacking

HERE = Path(__file__).parent
KEPT = Path(__file__).parents[3] / ".cache" / "cuda"
FLAGS = "-std=c++20 -O1 -g -fPIC -shared -Wall -Wextra -Werror -Wno-unknown-pragmas".split()
SANITIZER_VARIABLE = "DELTAHUB_TEST_SANITIZED_KERNELS"
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def sources() -> list[Path]:
    """The files with kernels."""
    return sorted(FOLDER.glob("*.cu"))


def headers() -> list[Path]:
    return sorted((FOLDER / "device").glob("*.cuh"))


def compiler() -> str:
    """A C++20 compiler, which the package needs anyway."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return name
    lacking("a C++ compiler runs the kernels on this CPU")


def compiled(*, sanitized: bool = False) -> Path:
    """The library with all kernels. It is compiled once for each state of the sources."""
    flags = [*FLAGS, *(SANITIZED if sanitized else [])]
    files = [HERE / "emulator.cpp", *sources()]
    content = b"".join(path.read_bytes() for path in [*files, HERE / "emulator.hpp", *headers()])
    digest = hashlib.sha256(" ".join(flags).encode() + content).hexdigest()[:16]
    KEPT.mkdir(parents=True, exist_ok=True)
    library = KEPT / f"kernels-{digest}.so"
    with (KEPT / "lock").open("w") as lock:  # of tests in other processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            new = library.with_suffix(".new")
            include = ["-include", HERE / "emulator.hpp"]
            command = [compiler(), *flags, *include, "-x", "c++", *files, "-o", new]
            subprocess.run(command, check=True, timeout=600)
            new.rename(library)
    return library


def is_sanitized() -> bool:
    """Whether this process has AddressSanitizer loaded, for `sanitized_environment` says so."""
    return os.environ.get(SANITIZER_VARIABLE) == "1"


def sanitized_environment() -> dict[str, str]:
    """The environment of a Python process whose kernels AddressSanitizer watches."""
    # The C++ runtime too: AddressSanitizer looks for its functions when a process begins.
    found = [_library_of_compiler(name) for name in ("libasan.so", "libstdc++.so.6")]
    return {
        **os.environ,
        SANITIZER_VARIABLE: "1",
        "LD_PRELOAD": " ".join(str(path) for path in found),
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def _library_of_compiler(name: str) -> Path:
    command = [compiler(), f"-print-file-name={name}"]
    path = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    if not path.is_absolute():
        lacking(f"{compiler()} has no {name}, by which the kernels' memory is watched")
    return path.resolve()


class KernelError(Exception):
    """A launch that would hang or be undefined on a GPU."""


class EmulatedDevice:
    """This CPU in place of a GPU. `seed` gives the order in which threads take turns."""

    array_type = (CPU, 0)

    def __init__(self, seed: int = 0, n_processors: int = 2, shared_bytes: int = 228 << 10) -> None:
        self.seed = seed
        self.n_processors = n_processors
        self.shared_bytes = shared_bytes
        self.launches: list[Launch] = []
        self._library = _library(is_sanitized())

    def allocate(self, size: int) -> Memory:
        # As on a GPU, memory begins at a multiple of 256 and holds arbitrary bytes. Smaller arrays
        # would come from NumPy's cache, which knows nothing of bytes that nobody may use.
        room = np.full(size + 1280, 0xA5, np.uint8)
        address = int(room.ctypes.data)
        begin = -address % 256
        if is_sanitized():
            _forbid(address, begin)
            _forbid(address + begin + size, len(room) - begin - size)
        return Memory(address + begin, size, room[begin : begin + size])

    def upload(self, memory: Memory, data: Bytes) -> None:
        assert data.nbytes <= memory.size
        memory.owner[: data.nbytes] = data

    def upload_on(self, stream: object, memory: Memory, data: Bytes) -> None:
        self.upload(memory, data)

    def download(self, stream: object, memory: Memory) -> Bytes:
        copy: Bytes = memory.owner.copy()
        return copy

    def launch(self, stream: object, launch: Launch) -> None:
        self.launches.append(launch)
        kernel = ctypes.cast(getattr(self._library, launch.kernel), ctypes.c_void_p)
        arguments = (ctypes.c_void_p * 5)(*launch.arguments)
        error = self._library.emulate(
            kernel, launch.n_groups, launch.n_threads, launch.shared_bytes, arguments, self.seed
        )
        if error is not None:
            raise KernelError(f"{launch.kernel}: {error.decode()}")

    def key_of(self, stream: object) -> int:
        return id(stream)


def _forbid(address: int, size: int) -> None:
    """AddressSanitizer reports who uses these bytes, until they are freed."""
    poison = ctypes.CDLL(None).__asan_poison_memory_region
    poison(ctypes.c_void_p(address), ctypes.c_size_t(size))


@cache
def _library(sanitized: bool) -> Any:
    library = ctypes.CDLL(str(compiled(sanitized=sanitized)))
    library.emulate.restype = ctypes.c_char_p
    library.emulate.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32,
        ctypes.c_void_p * 5, ctypes.c_uint32,
    )  # fmt: skip
    return library

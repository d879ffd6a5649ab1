"""The rivals' C++, built on first use by the machine's own compiler into the cache."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from benchmarks.results_file import processor

_SOURCES = Path(__file__).resolve().parent / "native"
_FLAGS = ["-std=c++20", "-O3", "-march=native", "-Wall", "-Wextra", "-shared", "-fPIC"]
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "rivals"


class NoCompiler(Exception):
    """There is no C++ compiler to build the rivals with."""


@functools.cache
def library() -> ctypes.CDLL:
    """The built library with its functions' types. NoCompiler where it cannot be built."""
    loaded = ctypes.CDLL(str(_built()))
    size, pointer, integer = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    loaded.fm_delta_bound.argtypes, loaded.fm_delta_bound.restype = [size, integer], size
    loaded.fm_delta_encode.argtypes = [pointer, pointer, size, integer, pointer]
    loaded.fm_delta_encode.restype = size
    loaded.fm_delta_decode.argtypes = [ctypes.c_char_p, size, pointer, size, integer, pointer]
    loaded.fm_delta_decode.restype = integer
    for function in (loaded.xor_split, loaded.join_xor, loaded.map_delta, loaded.add_delta):
        function.argtypes, function.restype = [pointer, pointer, size, integer, pointer], None
    return loaded


def digest() -> str:
    """Of the sources, the flags and the processor that they are built for."""
    found = hashlib.sha256("\0".join([*_FLAGS, processor(), platform.machine()]).encode())
    for source in sorted(_SOURCES.iterdir()):
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def _built() -> Path:
    path = CACHE / f"rivals-{digest()}.so"
    if not path.exists():
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
        if compiler is None:
            raise NoCompiler("the rivals are C++: install g++, or name a compiler in CXX")
        CACHE.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        command = [compiler, *_FLAGS, str(_SOURCES / "rivals.cpp"), "-o", str(scratch)]
        subprocess.run(command, check=True)
        os.replace(scratch, path)
    return path

"""The compilers of NVIDIA: nvcc, and NVRTC, which compiles where the kernels run."""

import ctypes
import importlib.util
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from deltahub.codecs.cuda.cupy_device import OPTIONS
from support.needed import lacking

ARCHITECTURES = ("80", "90", "100")  # A100, H100, B200


def compile_with_nvcc(source: Path, folder: Path) -> Path:
    """A file with the code of each architecture. Warnings are errors."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        lacking("nvcc, of the CUDA toolkit, compiles the kernels")
    target = folder / f"{source.stem}.fatbin"
    codes = [f"-gencode=arch=compute_{each},code=sm_{each}" for each in ARCHITECTURES]
    command = [nvcc, "-Werror=all-warnings", *OPTIONS, *codes, "-fatbin", "-o", target, source]
    subprocess.run(command, check=True, timeout=500)
    return target


@cache
def _nvrtc() -> Any:
    """The library of the package nvidia-cuda-nvrtc."""
    found = importlib.util.find_spec("nvidia")
    folders = (
        [] if found is None else [Path(each) for each in found.submodule_search_locations or ()]
    )
    libraries = sorted(path for each in folders for path in each.rglob("libnvrtc.so.*"))
    if not libraries:
        lacking("the package nvidia-cuda-nvrtc compiles the kernels; make test-cuda installs it")
    # NVRTC opens this one by its name alone, which succeeds once it is loaded.
    for builtins in libraries[-1].parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(libraries[-1]))


def compile_with_nvrtc(source: Path, architecture: str) -> bytes:
    """The code of a source. AssertionError with the compiler's words if it has errors."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    options = [*OPTIONS, f"--gpu-architecture=sm_{architecture}"]
    as_bytes = (ctypes.c_char_p * len(options))(*[each.encode() for each in options])
    text, name = source.read_bytes(), source.name.encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None) == 0
    try:
        result = nvrtc.nvrtcCompileProgram(program, len(options), as_bytes)
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        assert result == 0, log.value.decode()
        assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
        code = ctypes.create_string_buffer(size.value)
        assert nvrtc.nvrtcGetCUBIN(program, code) == 0
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

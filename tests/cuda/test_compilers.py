"""The kernels compile for the GPUs of today, by nvcc and by the compiler that CuPy uses."""

import re
from pathlib import Path

import pytest

from deltahub.codecs.cuda.cupy_device import source_of
from support.cuda.compilers import ARCHITECTURES, compile_with_nvcc, compile_with_nvrtc
from support.cuda.kernels import headers, sources

every_source = pytest.mark.parametrize("source", sources(), ids=lambda path: path.name)
DEFINED = re.compile(r"(?:DELTAHUB_(?:JOINING_)?KERNEL\(|__global__ void )(\w+)[,(]")


def kernels_in(source: Path) -> list[str]:
    return [name for name in DEFINED.findall(source.read_text()) if name != "name"]


@every_source
def test_nvcc_compiles_the_kernels_without_a_warning(source: Path, tmp_path: Path) -> None:
    assert compile_with_nvcc(source, tmp_path).stat().st_size > 0


@every_source
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_the_kernels(source: Path, architecture: str) -> None:
    code = compile_with_nvrtc(source, architecture)
    assert [name for name in kernels_in(source) if name.encode() not in code] == []


def test_the_host_knows_where_each_kernel_stands() -> None:
    kernels = {name: source for source in sources() for name in kernels_in(source)}
    assert len(kernels) == 11
    assert {name: source_of(name) for name in kernels} == kernels


def test_no_source_needs_a_standard_header() -> None:
    files = [*sources(), *headers()]
    assert [path.name for path in files if re.search("#include <", path.read_text())] == []

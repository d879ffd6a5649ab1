"""A GPU by CuPy, which compiles the kernels when they are first needed and keeps the result."""

import hashlib
import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from deltahub.codecs.cuda.arrays import CUDA
from deltahub.codecs.cuda.device import Bytes, Launch, Memory
from deltahub.codecs.errors import NoGpu, how_to_install

FOLDER: Final = Path(__file__).parent
SOURCES: Final = {
    "decode_floats": "floats.cu",
    "decode_fm_delta": "fm_delta.cu",
    "join_planes": "planes.cu",
}
VERIFY: Final = "verify_checksums"
OPTIONS: Final = ("--std=c++17", f"-I{FOLDER}")


class CupyDevice:
    """One device of this machine. NoGpu without one, or without CuPy."""

    def __init__(self, number: int | None = None) -> None:
        """number: of the device; None for CuPy's current one."""
        self._cupy = cupy = _cupy()
        self._device = device = cupy.cuda.Device(number)
        self.array_type = (CUDA, int(device.id))
        self.n_processors = int(device.attributes["MultiProcessorCount"])
        self.shared_bytes = int(device.attributes["MaxSharedMemoryPerMultiprocessor"])

    def allocate(self, size: int) -> Memory:
        with self._device:
            memory = self._cupy.cuda.alloc(size)
        return Memory(int(memory.ptr), size, memory)

    def upload(self, memory: Memory, data: Bytes) -> None:
        with self._device:
            memory.owner.copy_from_host(_address_of(data), data.nbytes)
            # The copy may return before the last bytes arrive, and streams of torch do not wait.
            self._cupy.cuda.Stream.null.synchronize()

    def upload_on(self, stream: object, memory: Memory, data: Bytes) -> None:
        with self._device:
            on = self._stream(stream)
            memory.owner.copy_from_host_async(_address_of(data), data.nbytes, on)

    def download(self, stream: object, memory: Memory) -> Bytes:
        data = np.empty(memory.size, np.uint8)
        with self._device:
            on = self._stream(stream)
            memory.owner.copy_to_host_async(_address_of(data), data.nbytes, on)
            on.synchronize()
        return data

    def launch(self, stream: object, launch: Launch) -> None:
        with self._device:
            kernel = _kernel(launch.kernel, self.array_type[1])
            if launch.shared_bytes > kernel.max_dynamic_shared_size_bytes:
                kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
            with self._stream(stream):
                kernel(
                    (launch.n_groups,),
                    (launch.n_threads,),
                    tuple(np.uint64(address) for address in launch.arguments),
                    shared_mem=launch.shared_bytes,
                )

    def key_of(self, stream: object) -> int:
        with self._device:
            return int(self._stream(stream).ptr)

    def _stream(self, stream: Any) -> Any:
        """The stream of CuPy for one of CuPy or torch, or an address."""
        cuda = self._cupy.cuda
        if stream is None:
            return cuda.get_current_stream()
        if isinstance(stream, cuda.Stream | cuda.ExternalStream):
            return stream
        address = stream if isinstance(stream, int) else int(stream.cuda_stream)
        if hasattr(cuda.Stream, "from_external"):  # since CuPy 14
            return cuda.Stream.from_external(_ForeignStream(address))
        return cuda.ExternalStream(address, self.array_type[1])


@dataclass(frozen=True)
class _ForeignStream:
    """A stream that another library made, in the protocol that CuPy 14 asks for."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def source_of(kernel: str) -> Path:
    """The file that defines a kernel."""
    if kernel == VERIFY:
        return FOLDER / "checksums.cu"
    return FOLDER / SOURCES[kernel.rpartition("_")[0]]


def _address_of(data: Bytes) -> int:
    return int(data.ctypes.data)


@cache
def _kernel(name: str, device: int) -> Any:
    return _module(source_of(name), device).get_function(name)


@cache
def _module(source: Path, device: int) -> Any:
    # CuPy keeps what it compiled under the text of the source and the options alone, so that an
    # option must tell it of other headers.
    headers = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("device/*.cuh")))
    digest = f"-DDELTAHUB_HEADERS=0x{hashlib.sha256(headers).hexdigest()[:16]}"
    return _cupy().RawModule(code=source.read_text(), options=(*OPTIONS, digest))


def _cupy() -> Any:
    """The module cupy; NoGpu if it is not installed, or sees no device."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError as exc:
        raise NoGpu(
            f"decoding on a GPU needs CuPy, which is not installed: {how_to_install('gpu')}"
        ) from exc
    try:
        n_devices = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as exc:
        raise _no_device(str(exc)) from exc
    if n_devices == 0:
        raise _no_device("no device")
    return cupy


def _no_device(reason: str) -> NoGpu:
    return NoGpu(
        f"decoding on a GPU needs one with its driver ({reason}); for its Python packages,"
        f" {how_to_install('gpu')}"
    )

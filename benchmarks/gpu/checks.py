"""Every golden vector of what GPUs decode, and every case, byte for byte.

As a program it checks on this machine's GPU; compute-sanitizer can watch it.
"""

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.cases import Case, make_cases
from deltahub.codecs import Buffer, CodecError, FrameView, open_frame
from deltahub.codecs.cuda.cupy_device import CupyDevice
from deltahub.codecs.cuda.device import Device
from deltahub.codecs.cuda.frames import GpuFrame
from deltahub.codecs.cuda.image import DECODABLE
from deltahub.codecs.cuda.weights import GpuWeight
from deltahub.codecs.exports.file import ExportFile
from deltahub.codecs.exports.integers import IntegerCoding

VECTORS = Path(__file__).resolve().parents[2] / "tests" / "vectors"
SMALL_BYTES = 1 << 18  # of a case that a sanitizer watches


class Mismatch(Exception):
    """A frame that the GPU decodes to other bytes than it should."""


@dataclass(frozen=True)
class Gpu:
    """A device, and the library whose arrays lie on it: CuPy, or NumPy beside an emulator."""

    device: Device
    arrays: Any

    @classmethod
    def of_this_machine(cls) -> "Gpu":
        """NoGpu if it has none, or no CuPy."""
        return cls(CupyDevice(), importlib.import_module("cupy"))

    def empty(self, size: int) -> Any:
        return self.arrays.empty(size, np.uint8)

    def copied(self, data: Buffer) -> Any:
        return self.arrays.asarray(np.frombuffer(bytearray(data), np.uint8))


def decoded(gpu: Gpu, view: FrameView, body: Buffer, base: Buffer | None) -> bytes:
    """The bytes of a frame. Every error of the decoder."""
    frame = GpuFrame(view, body, gpu.device)
    out = gpu.empty(view.header.size_bytes)
    held = None if base is None else gpu.copied(base)
    frame.decode_into(out, held)
    frame.check()
    decoded_bytes: bytes = out.tobytes()
    return decoded_bytes


def check_vectors(gpu: Gpu) -> int:
    """The number of golden vectors, all of which the device decodes or refuses as it must."""
    paths = [path for codec in DECODABLE for path in sorted((VECTORS / codec).glob("v*/*.json"))]
    for path in paths:
        vector: dict[str, Any] = json.loads(path.read_text())
        base = bytes.fromhex(vector["base"]) if "base" in vector else None
        try:
            view, body = open_frame(bytes.fromhex(vector["frame"]))
            found = decoded(gpu, view, body, base)
        except CodecError as exc:
            if exc.code != vector["expect"]:
                raise Mismatch(f"{path.name}: {exc}, not {vector['expect']}") from exc
            continue
        expected = bytes.fromhex(vector["raw"]) * vector.get("times", 1)
        if vector["expect"] != "ok" or found != expected:
            raise Mismatch(f"{path.name}: other bytes, or none were to be decoded")
    return len(paths)


def check_exports(gpu: Gpu) -> int:
    """The number of golden exports, whose weights the device decodes at every level."""
    n_exports = 0
    for path in sorted((VECTORS / "neuzip").glob("v*/*.json")):
        vector: dict[str, Any] = json.loads(path.read_text())
        if vector["expect"] != "ok":
            continue
        n_exports += 1
        for name, weight in ExportFile(bytes.fromhex(vector["file"]), path.name).weights.items():
            if isinstance(weight.coding, IntegerCoding):
                continue  # a GPU refuses them
            for level in weight.coding.levels:
                on_gpu, out = GpuWeight(weight, level, gpu.device), gpu.empty(weight.plain_bytes)
                on_gpu.decode_into(out)
                on_gpu.check()
                if out.tobytes().hex() != vector["weights"][name][str(level)]:
                    raise Mismatch(f"{path.name}: other bytes of {name} at {level} bits")
    return n_exports


def check_cases(gpu: Gpu, cases: Sequence[Case]) -> None:
    for case in cases:
        if decoded(gpu, case.view, case.body, case.base) != case.source:
            raise Mismatch(f"{case.name}: other bytes")


def main() -> int:
    gpu = Gpu.of_this_machine()
    n_vectors = check_vectors(gpu) + check_exports(gpu)
    cases = make_cases(SMALL_BYTES)
    check_cases(gpu, cases)
    print(f"{n_vectors} golden vectors and {len(cases)} frames, byte for byte", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

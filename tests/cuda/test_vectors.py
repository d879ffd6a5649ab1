"""The kernels decode every golden vector to the bytes of the native core, and refuse the others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.checks import Gpu, check_exports, check_vectors
from deltahub.codecs import CodecError, decode_frame
from support.cuda.decoding import decode_on
from support.cuda.kernels import EmulatedDevice

ROOT = Path(__file__).parents[1] / "vectors"
CODECS = ("fm_delta", "neuzip_lossless", "raw")
PATHS = sorted(path for codec in CODECS for path in ROOT.glob(f"{codec}/v*/*.json"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_vector_is_decoded_as_by_the_native_core(path: Path) -> None:
    vector: dict[str, Any] = json.loads(path.read_text())
    frame = bytes.fromhex(vector["frame"])
    base = bytes.fromhex(vector["base"]) if "base" in vector else None
    if vector["expect"] == "ok":
        assert decode_on(EmulatedDevice(), frame, base) == decode_frame(frame, base)
        return
    with pytest.raises(CodecError) as expected:
        decode_frame(frame, base)
    with pytest.raises(CodecError) as error:
        decode_on(EmulatedDevice(), frame, base)
    assert (error.value.code, str(error.value)) == (expected.value.code, str(expected.value))


def test_the_benchmark_checks_them_all() -> None:
    gpu = Gpu(EmulatedDevice(), np)
    assert check_vectors(gpu) > 150
    assert check_exports(gpu) > 20

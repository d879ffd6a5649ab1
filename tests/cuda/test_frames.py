"""What callers of GpuFrame and GpuFrames may do, and the words in which they are refused."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from deltahub.codecs import CorruptFrame, DType, InvalidInput, WrongBase, open_frame
from deltahub.codecs.cuda.frames import GpuFrame, GpuFrames, warps_a_group
from deltahub.codecs.errors import NoGpu
from support.codecs.coded_frames import CodedFrame, float_frame
from support.codecs.frames import make_frame
from support.codecs.small_frames import SMALL_FRAMES
from support.cuda.decoding import array_of, opened
from support.cuda.kernels import EmulatedDevice

FLOATS = float_frame(DType.BF16, 900, 3)
DELTAS = SMALL_FRAMES["BF16, all modes"]


def gpu_frame(case: CodedFrame, device: EmulatedDevice | None = None) -> GpuFrame:
    return GpuFrame(*opened(case), device or EmulatedDevice())


def buffer_for(case: CodedFrame) -> Any:
    return np.zeros(len(case.source), np.uint8)


def test_a_frame_is_decoded_again_and_again_from_one_upload() -> None:
    device = EmulatedDevice()
    frame, outs = gpu_frame(FLOATS, device), [buffer_for(FLOATS) for _ in range(3)]
    for out in outs:
        frame.decode_into(out)
    frame.check()
    assert {out.tobytes() for out in outs} == {FLOATS.source}
    assert frame.size_bytes < len(FLOATS.source) + 6000


def test_the_weights_of_torch_are_filled_without_a_copy() -> None:
    weight = torch.zeros(30, 30, dtype=torch.bfloat16)
    frame = gpu_frame(FLOATS)
    frame.decode_into(weight)
    frame.check()
    assert weight.view(torch.uint8).numpy().tobytes() == FLOATS.source


def test_a_base_may_be_the_buffer_that_is_filled() -> None:
    assert DELTAS.base is not None
    both = array_of(DELTAS.base)
    frame = gpu_frame(DELTAS)
    frame.decode_into(both, both)
    frame.check()
    assert both.tobytes() == DELTAS.source


def test_without_verification_one_kernel_runs() -> None:
    device = EmulatedDevice()
    gpu_frame(FLOATS, device).decode_into(buffer_for(FLOATS), verify=False)
    assert [launch.kernel for launch in device.launches] == ["decode_floats_16"]


def test_damage_is_told_once_and_the_next_decoding_is_sound() -> None:
    assert DELTAS.base is not None
    frame, out = gpu_frame(DELTAS), buffer_for(DELTAS)
    frame.decode_into(out, np.zeros(len(DELTAS.base), np.uint8))
    with pytest.raises(CorruptFrame, match="block 0 is not one that an encoder writes"):
        frame.check()
    frame.decode_into(out, array_of(DELTAS.base))
    frame.check()
    assert out.tobytes() == DELTAS.source


def test_an_error_names_the_frame_of_several() -> None:
    assert DELTAS.base is not None
    frames = GpuFrames([opened(FLOATS), opened(DELTAS)], EmulatedDevice())
    wrong = np.zeros(len(DELTAS.base), np.uint8)
    frames.decode_into([buffer_for(FLOATS), buffer_for(DELTAS)], [None, wrong])
    with pytest.raises(CorruptFrame, match="frame 1: block 0 is not one that an encoder"):
        frames.check()


@pytest.mark.parametrize(
    ("out", "base", "error", "message"),
    [
        (np.zeros(10, np.uint8), None, InvalidInput, "an array of 10 bytes for 1800"),
        (np.zeros((900, 2), np.uint16)[:, 0], None, InvalidInput, "not contiguous"),
        (np.zeros(1801, np.uint8)[1:], None, InvalidInput, "not at a multiple of 2 bytes"),
        ([1, 2], None, InvalidInput, "an array without DLPack"),
        (np.zeros(900, np.uint16), np.zeros(900, np.uint16), WrongBase, "has no base, and one was"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    out: Any, base: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gpu_frame(FLOATS).decode_into(out, base)


def test_a_base_that_is_missing_or_of_another_size_is_refused() -> None:
    frame, out = gpu_frame(DELTAS), buffer_for(DELTAS)
    with pytest.raises(WrongBase, match="frames of fm_delta need their base, and none was"):
        frame.decode_into(out)
    with pytest.raises(WrongBase, match="a base of 2 bytes for"):
        frame.decode_into(out, np.zeros(2, np.uint8))


def test_an_array_on_another_device_is_refused() -> None:
    device = EmulatedDevice()
    frame = gpu_frame(FLOATS, device)
    device.array_type = (2, 0)
    with pytest.raises(InvalidInput, match=r"an array on device \(1, 0\), the frames are on"):
        frame.decode_into(buffer_for(FLOATS))


@pytest.mark.parametrize("codec", ["zstd"])
def test_a_codec_that_gpus_do_not_decode_is_refused_by_name(codec: str) -> None:
    frame = make_frame(codec, DType.U8, 10, 100, bytes(1000), b"")
    with pytest.raises(InvalidInput, match=f"codec {codec}; a GPU decodes raw, neuzip_lossless"):
        GpuFrame(*open_frame(frame), EmulatedDevice())


def test_no_frames_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        GpuFrames([], EmulatedDevice())


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(NoGpu, match=r'pip install "\.\[gpu\]"'):
        GpuFrame(*opened(FLOATS))


def test_without_a_device_the_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class CudaError(Exception):
        pass

    def count() -> int:
        raise CudaError("CUDA driver version is insufficient")

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=CudaError)
    cupy: Any = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(NoGpu, match=r"\(CUDA driver version is insufficient\).*\.\[gpu\]"):
        GpuFrame(*opened(FLOATS))


def test_the_package_is_imported_without_cupy() -> None:
    assert "cupy" not in sys.modules
    importlib.import_module("deltahub.codecs.cuda.frames")
    assert "cupy" not in sys.modules


@pytest.mark.parametrize(
    ("n_blocks", "shared_bytes", "expected"),
    [(10, 5000, 1), (1024, 5000, 1), (10000, 5000, 2), (10000, 66000, 16), (300, 66000, 1)],
)
def test_tables_are_shared_by_as_few_warps_as_fill_the_gpu(
    n_blocks: int, shared_bytes: int, expected: int
) -> None:
    device = EmulatedDevice(n_processors=132)
    assert warps_a_group(n_blocks, shared_bytes, device) == expected

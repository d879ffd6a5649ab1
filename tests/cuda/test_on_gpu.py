"""The kernels on a GPU: vectors, damage, and the streams and buffers of torch."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu.cases import make_cases
from benchmarks.gpu.checks import Gpu, check_cases, check_vectors, decoded
from benchmarks.gpu.run import sanitize
from deltahub.codecs import CodecError, CorruptFrame
from deltahub.codecs.cuda.frames import GpuFrame, GpuFrames
from deltahub.codecs.errors import NoGpu
from support.codecs.small_frames import SMALL_FRAMES
from support.cuda.damage import coded_blocks, native_outcome, stream_of, with_stream
from support.cuda.decoding import opened

pytestmark = pytest.mark.gpu
CASES = st.sampled_from(sorted(SMALL_FRAMES))


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    try:
        return Gpu.of_this_machine()
    except NoGpu as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def torch_on_gpu(gpu: Gpu) -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")
    return torch


def test_golden_vectors(gpu: Gpu) -> None:
    assert check_vectors(gpu) > 150


def test_frames_of_many_blocks(gpu: Gpu) -> None:
    check_cases(gpu, make_cases(16 << 20))


def test_frames_of_all_kinds_are_decoded_by_one_call(gpu: Gpu) -> None:
    cases = list(SMALL_FRAMES.values())
    outs = [gpu.empty(len(case.source)) for case in cases]
    frames = GpuFrames([opened(case) for case in cases], gpu.device)
    frames.decode_into(
        outs, [None if case.base is None else gpu.copied(case.base) for case in cases]
    )
    frames.check()
    assert [out.tobytes() for out in outs] == [case.source for case in cases]


@settings(max_examples=300)
@given(name=CASES, seed=st.integers(0, 2**32 - 1), is_junk=st.booleans(), choice=st.data())
def test_damaged_streams_end_as_on_the_cpu(
    gpu: Gpu, name: str, seed: int, is_junk: bool, choice: st.DataObject
) -> None:
    case = SMALL_FRAMES[name]
    index = choice.draw(st.sampled_from(coded_blocks(case)))
    stream = bytearray(stream_of(case, index))
    random = np.random.default_rng(seed)
    if is_junk:
        stream[:] = random.bytes(len(stream))
    else:
        stream[int(random.integers(len(stream)))] ^= 1 << int(random.integers(8))
    damaged = with_stream(case, index, bytes(stream))
    try:
        outcome: tuple[str, str | bytes] = "ok", decoded(gpu, *damaged, case.base)
    except CodecError as exc:
        outcome = exc.code, str(exc)
    assert outcome == native_outcome(damaged, case.base)


def test_a_weight_of_torch_is_filled_on_its_stream(gpu: Gpu, torch_on_gpu: Any) -> None:
    torch, case = torch_on_gpu, SMALL_FRAMES["BF16, all modes"]
    view, body = opened(case)
    frame, stream = GpuFrame(view, body, gpu.device), torch.cuda.Stream()
    base = torch.frombuffer(bytearray(case.base or b""), dtype=torch.bfloat16).cuda()
    weight = torch.empty_like(base)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        frame.decode_into(weight, base, torch.cuda.current_stream())
        doubled = weight.view(torch.int16) + 0  # in the order of the stream, without a wait
    frame.check(stream)
    assert doubled.cpu().numpy().tobytes() == case.source


def test_damage_does_not_stop_the_next_decoding(gpu: Gpu) -> None:
    case = SMALL_FRAMES["BF16, fast"]
    frame = GpuFrame(*opened(case), gpu.device)
    out = gpu.empty(len(case.source))
    frame.decode_into(out, gpu.copied(bytes(len(case.source))))
    with pytest.raises(CorruptFrame):
        frame.check()
    frame.decode_into(out, gpu.copied(case.base or b""))
    frame.check()
    assert out.tobytes() == case.source


def test_the_sanitizer_of_cuda_finds_nothing(gpu: Gpu) -> None:
    sanitize()

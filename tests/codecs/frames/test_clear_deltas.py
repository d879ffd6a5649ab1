"""At effort fast one native call makes a delta that is clearly smaller than standalone."""

import numpy as np
import pytest

from deltahub.codecs import BlockMode, DType, FrameView, TensorSpec, encode_frame, tensor_id
from deltahub.codecs._native import encode_delta_frame
from deltahub.codecs.frames.encode import split_frames
from deltahub.codecs.protocol import Effort
from deltahub.codecs.words import WORD_KINDS
from support.codecs.deltas import as_words, fine_tune, scaled_fine_tune
from support.codecs.frames import plan_on
from support.codecs.kernels import every_kernel, running

FLOATS = [dtype for dtype in DType if dtype.is_float]
HEADER = bytes(184)


def frame_at_fast(
    dtype: DType,
    rows: int,
    columns: int,
    source: bytes,
    base: bytes,
    codec: str = "auto",
    threads: int = 1,
) -> bytes:
    spec = TensorSpec(tensor_id(source), dtype, rows, columns)
    (part,) = split_frames(spec)
    plan = plan_on(base, dtype)
    return encode_frame(spec, part, source, base, plan, codec, threads, Effort.FAST)


def clear_delta(
    dtype: DType, rows: int, columns: int, source: bytes, base: bytes, size_limit: int = 1 << 30
) -> bytes | None:
    kind = WORD_KINDS[dtype]
    return encode_delta_frame(kind, source, base, rows, columns, rows, 1, HEADER, size_limit, 1, 1)


@every_kernel
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(1, 64), (1, 700), (40, 33), (300, 500), (2, 200_000)], ids=str)
def test_it_is_the_frame_that_is_put_together_from_parts(
    dtype: DType, shape: tuple[int, int], kernels: str
) -> None:
    rows, columns = shape
    source, base = scaled_fine_tune(dtype, rows, columns)
    source = base[: len(source) // 4] + source[len(source) // 4 :]  # some blocks are unchanged
    with running(kernels):
        frame = frame_at_fast(dtype, rows, columns, source, base)
        if FrameView.parse(frame).header.codec == "fm_delta":
            assert frame == frame_at_fast(dtype, rows, columns, source, base, "fm_delta")
        assert frame == frame_at_fast(dtype, rows, columns, source, base, threads=3)


def test_fine_tunes_are_clear() -> None:
    for dtype, step in [(DType.F32, 2e-4), (DType.F16, 2e-5), (DType.BF16, 2e-4)]:
        source, base = fine_tune(dtype, 100_000, step=step)
        assert clear_delta(dtype, 100, 1000, source, base) is not None
        assert (
            FrameView.parse(frame_at_fast(dtype, 100, 1000, source, base)).header.codec
            == "fm_delta"
        )


def test_what_may_be_smaller_alone_is_not_clear() -> None:
    random = np.random.default_rng(0)
    tuned, base = fine_tune(DType.BF16, 100_000)
    other, _ = fine_tune(DType.BF16, 100_000, seed=1)
    row = random.integers(0, 1 << 16, 100, np.uint16)
    repeats, noise = np.tile(row, 1000).tobytes(), random.bytes(200_000)
    for source, codec in [(other, "neuzip_lossless"), (repeats, "zstd"), (noise, "raw")]:
        assert clear_delta(DType.BF16, 100, 1000, source, base) is None
        assert (
            FrameView.parse(frame_at_fast(DType.BF16, 100, 1000, source, base)).header.codec
            == codec
        )
    # No bound exists for integers, nor for fewer than 64 words.
    assert clear_delta(DType.I16, 100, 1000, tuned, base) is None
    assert clear_delta(DType.BF16, 1, 63, tuned[:126], base[:126]) is None


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kept", ["every third", "a third in one place", "some", "columns"])
def test_pruned_tensors_take_hardly_more_than_alone(dtype: DType, kept: str) -> None:
    random = np.random.default_rng(2)
    for step in np.geomspace(1e-5, 1e-1, 9):
        rows, columns = random.integers(30, 400, 2).tolist()
        at = np.arange(rows)[:, None]
        mask = {
            "every third": at % 3 == 0,
            "a third in one place": at < rows // 3,
            "some": random.random((rows, 1)) < 0.2,
            "columns": random.random(columns) < 0.3,
        }[kept]
        weights = random.standard_normal((rows, columns)) * 0.02 * mask
        near = weights + random.standard_normal((rows, columns)) * step
        source, base = as_words(weights, dtype).tobytes(), as_words(near, dtype).tobytes()
        spec = TensorSpec(tensor_id(source), dtype, rows, columns)
        (part,) = split_frames(spec)
        standalone = encode_frame(
            spec, part, source, codec="neuzip_lossless", threads=1, effort=Effort.FAST
        )
        # An estimate by a sample is not exact.
        assert len(frame_at_fast(dtype, rows, columns, source, base)) < 1.02 * len(standalone) + 64


def test_it_stays_below_what_it_must() -> None:
    source, base = fine_tune(DType.BF16, 100_000)
    frame = clear_delta(DType.BF16, 100, 1000, source, base)
    assert frame is not None
    assert clear_delta(DType.BF16, 100, 1000, source, base, len(frame) + 1) == frame
    assert clear_delta(DType.BF16, 100, 1000, source, base, len(frame)) is None


def test_blocks_that_are_as_the_base_cost_nothing() -> None:
    _, base = fine_tune(DType.BF16, 300_000)
    source = base[:-2] + b"\x12\x34"
    frame = frame_at_fast(DType.BF16, 300, 1000, source, base)
    assert frame == frame_at_fast(DType.BF16, 300, 1000, source, base, "fm_delta")
    modes = [row[0] for row in FrameView.parse(frame).blocks.rows(0, 4)]
    assert modes[:3] == [BlockMode.UNCHANGED] * 3


def test_sizes_that_do_not_fit_are_refused() -> None:
    source, base = fine_tune(DType.BF16, 1000)
    for rows, near, header in [
        (11, base, HEADER),
        ((1 << 63) + 10, base, HEADER),  # rows * columns wraps around
        (10, base[:-2], HEADER),
        (10, base, HEADER[:23]),
    ]:
        with pytest.raises(ValueError, match=r"words|base|too short"):
            encode_delta_frame(
                WORD_KINDS[DType.BF16], source, near, rows, 100, rows, 1, header, 1 << 30, 1, 1
            )

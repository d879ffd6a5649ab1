"""The floating-point modes of the processor (rounding, flush-to-zero) change no byte."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from deltahub.codecs import (
    BasePlan,
    BaseSegment,
    DType,
    FrameView,
    assemble,
    cast,
    decode_frame,
    encode_frame,
    split_frames,
    tensor_id,
    tensor_spec,
)
from deltahub.codecs._native import FmDeltaEncoder
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank, predict
from deltahub.codecs.frames.views import Scaled
from deltahub.codecs.protocol import Effort
from deltahub.codecs.reference.fm_delta import BlockShape
from deltahub.codecs.words import WORD_KINDS
from support.codecs.coded_frames import CodedFrame, delta_frame, float_frame
from support.codecs.deltas import LAST_FINITE, fine_tune, special_words
from support.codecs.frames import BASE_ID
from support.codecs.kernels import every_kernel, run_delta, running
from support.codecs.processor_modes import MODES, in_mode
from support.codecs.small_frames import SMALL_FRAMES, as_reals, merged_adapter

every_mode = pytest.mark.parametrize("mode", list(MODES))


def cast_words(words: bytes, source: DType, dtype: DType) -> bytes:
    out = bytearray(len(words) // source.itemsize * dtype.itemsize)
    cast(words, source, dtype, memoryview(out))
    return bytes(out)


def is_changed() -> bool:
    """Whether the processor is not in its default floating-point mode."""
    one, tiny = np.float32(1), np.float32(1e-40)
    sums = one + np.float32(2**-25), -one - np.float32(2**-25), one - np.float32(2**-26)
    return tiny * one == 0 or sums != (one, -one, one)


@every_mode
@every_kernel
def test_the_modes_of_the_processor_do_not_show(kernels: str, mode: str) -> None:
    """Predictions are the only step that a rounding mode could change."""
    random = np.random.default_rng(5)
    rows, columns, rank = 33, 64, 4
    shape, frame = BlockShape(rows, columns), (rows, columns)
    left = random.integers(-3000, 3000, rows * rank).astype("<i2").reshape(rows, rank)
    right = random.integers(-3000, 3000, rank * columns).astype("<i2").reshape(rank, columns)
    assert not is_changed()
    for dtype, floats in FLOAT_WORDS.items():
        # With subnormal words: in every second row all exponents are zero.
        near = np.frombuffer(fine_tune(dtype, rows * columns)[1], special_words(dtype).dtype)
        rest = near.reshape(rows, columns) & (floats.sign - 1) >> floats.exponent_bits
        base = np.where(np.arange(rows)[:, None] % 2, near.reshape(rows, columns), rest)
        for floor, is_rounded in ((1, False), (floats.max_exponent // 2 - 8, True)):
            factors = LowRank(left, right, floor, is_rounded)
            words = predict(dtype, base, factors).tobytes(), base.tobytes()
            encoders, streams = [], []
            for setting in (nullcontext(), in_mode(mode)):
                with setting, running(kernels):
                    encoder = FmDeltaEncoder(
                        WORD_KINDS[dtype], *words, rows, columns, 2,
                        left.tobytes(), right.tobytes(), floor, False,
                    )  # fmt: skip
                    encoders.append(encoder)
                    streams.append(encoder.encode(*words, 0, 0, rows, columns))
            for encoder, stream in zip(encoders, streams, strict=True):
                prelude = encoder.prelude
                with in_mode(mode):
                    assert is_changed()
                    changed = run_delta(kernels, dtype, frame, prelude, stream, words[1], shape)
                assert changed == words[0]
                assert run_delta(kernels, dtype, frame, prelude, stream, words[1], shape) == changed
    assert not is_changed()


def in_blocks(frame: CodedFrame, rows_per_block: int) -> CodedFrame:
    """The same tensor in shorter blocks, so that each of two threads gets some."""
    assert frame.base is not None
    geometry = replace(frame.geometry, rows_per_block=rows_per_block)
    return delta_frame(geometry, frame.source, frame.base, Effort(frame.body.effort))


FRAMES = {
    **SMALL_FRAMES,
    "BF16, low rank, blocks": in_blocks(SMALL_FRAMES["BF16, low rank, default"], 8),
    "F16, low rank, blocks": in_blocks(SMALL_FRAMES["F16, low rank, max"], 8),
    "F32, low rank, blocks": in_blocks(merged_adapter(DType.F32, Effort.DEFAULT), 8),
    "F32, decayed rows, blocks": in_blocks(SMALL_FRAMES["F32, decayed rows, max"], 8),
    **{f"floats, {dtype.name}, blocks": float_frame(dtype, 4096, 8) for dtype in LAST_FINITE},
}


def test_frames_in_blocks_have_the_parts_that_the_modes_could_touch() -> None:
    for name, frame in FRAMES.items():
        if "blocks" in name:
            assert frame.geometry.n_blocks == 8
        if "low rank" in name:
            assert frame.model.low_rank is not None
        if "decayed rows" in name:
            assert frame.model.decay_steps is not None


@every_mode
@every_kernel
def test_frames_are_decoded_alike_in_every_mode_and_by_threads_that_have_it(
    kernels: str, mode: str
) -> None:
    with running(kernels):
        for name, frame in FRAMES.items():
            for threads in (1, 2):
                with in_mode(mode):
                    found = decode_frame(frame.frame, frame.base, threads)
                assert found == frame.source, name
    assert not is_changed()


def test_a_thread_has_the_mode_of_the_one_that_started_it() -> None:
    """So do the native threads of the test above."""
    for mode in MODES:
        with in_mode(mode), ThreadPoolExecutor(1) as pool:
            assert pool.submit(is_changed).result(), mode


@every_mode
def test_what_was_encoded_in_a_mode_is_decoded_without_it(mode: str) -> None:
    """The low-rank search calculates in floats, so that its frames may differ."""
    for name in ("BF16, low rank", "F16, low rank", "F32, low rank", "F32, decayed rows"):
        frame = FRAMES[f"{name}, blocks"]
        assert frame.base is not None
        with in_mode(mode):
            made = in_blocks(frame, 8).frame
        assert decode_frame(made, frame.base, 2) == frame.source, name


@every_mode
@pytest.mark.parametrize(
    ("wide", "dtype"),
    [(DType.F32, DType.BF16), (DType.F32, DType.F16), (DType.F64, DType.F16)],
    ids=lambda dtype: dtype.name,
)
def test_a_base_is_cast_alike_in_every_mode(wide: DType, dtype: DType, mode: str) -> None:
    rows, columns = 64, 64
    count = rows * columns
    tuned, near = (as_reals(words, wide).copy() for words in fine_tune(wide, count))
    smallest = 2.0**-14 if dtype is DType.F16 else 2.0**-126  # normal; its square is subnormal
    for words in (tuned, near):
        words[::4] *= smallest
    source, expected = (cast_words(words.tobytes(), wide, dtype) for words in (tuned, near))
    spec = tensor_spec(tensor_id(source), dtype.name, [rows, columns])
    (part,) = split_frames(spec)
    plan = BasePlan((BaseSegment(BASE_ID, wide, 0, count),), is_cast=True)
    frame = encode_frame(spec, part, source, expected, plan, "fm_delta")
    stored = memoryview(near.tobytes())

    def read(_: bytes, first: int, out: memoryview) -> None:
        out[:] = stored[first : first + len(out)]

    base = bytearray(len(expected))
    with in_mode(mode):
        assemble(plan, dtype, 0, count, read, memoryview(base))
        found = [decode_frame(frame, base, threads) for threads in (1, 2)]
        assert is_changed()
    assert FrameView.parse(frame).header.base == plan
    assert base == expected
    assert found == [source, source]


@every_mode
@pytest.mark.parametrize("dtype", [DType.F8_E4M3, DType.F8_E5M2], ids=lambda dtype: dtype.name)
def test_a_base_is_scaled_alike_in_every_mode(dtype: DType, mode: str) -> None:
    """Also numbers that are subnormal, and products that are."""
    random = np.random.default_rng(7)
    words = random.integers(0, 1 << 32, 4096, dtype=np.uint32)
    words[::3] = random.integers(0, 1 << 23, len(words[::3]), dtype=np.uint32)
    view = Scaled(64, 1, 64, (2.0 ** np.linspace(-64, 64, 64)).astype("<f4").tobytes())
    plan = BasePlan((BaseSegment(BASE_ID, DType.F32, 0, 4096),), is_cast=True, view=view)

    def read(_: bytes, first: int, out: memoryview) -> None:
        out[:] = memoryview(words.tobytes())[first : first + len(out)]

    expected, found = bytearray(4096), bytearray(4096)
    assemble(plan, dtype, 0, 4096, read, memoryview(expected))
    with in_mode(mode):
        assemble(plan, dtype, 0, 4096, read, memoryview(found))
        assert is_changed()
    assert found == expected

"""The processor's modes of floats, rounding and subnormals, change no byte."""

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch

from deltahub.codecs._native import FmDeltaEncoder
from deltahub.codecs.low_rank import FLOAT_WORDS, LowRank, predict
from deltahub.codecs.reference.fm_delta import BlockShape
from deltahub.codecs.words import WORD_KINDS
from support.deltas import fine_tune, special_words
from support.kernels import every_kernel, run_delta, running

ROUNDING = {"down": 0x400, "up": 0x800, "to zero": 0xC00}  # FE_* of x86


@contextmanager
def in_mode(mode: str) -> Iterator[None]:
    """This thread rounds otherwise; or subnormal results and operands count as zero."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    if mode in ROUNDING:
        assert libm.fesetround(ROUNDING[mode]) == 0
    else:
        assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        assert libm.fesetround(0) == 0


def is_changed() -> bool:
    """Whether the processor counts otherwise than it does at first."""
    one, tiny = np.float32(1), np.float32(1e-40)
    sums = one + np.float32(2**-25), -one - np.float32(2**-25), one - np.float32(2**-26)
    return tiny * one == 0 or sums != (one, -one, one)


@pytest.mark.parametrize("mode", ["flush to zero", *ROUNDING])
@every_kernel
def test_the_modes_of_the_processor_do_not_show(kernels: str, mode: str) -> None:
    """Predictions are the only part that a rounding mode could touch."""
    random = np.random.default_rng(5)
    rows, columns, rank = 33, 64, 4
    shape, frame = BlockShape(rows, columns), (rows, columns)
    left = random.integers(-3000, 3000, rows * rank).astype("<i2").reshape(rows, rank)
    right = random.integers(-3000, 3000, rank * columns).astype("<i2").reshape(rank, columns)
    assert not is_changed()
    for dtype, floats in FLOAT_WORDS.items():
        # Subnormal words among them: in every other row all exponents are zero.
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

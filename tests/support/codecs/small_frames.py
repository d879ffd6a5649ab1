"""Small frames from the encoders, of every effort and block mode, with every part of a model.

They are small enough that a test can flip each bit.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from deltahub.codecs import DType, Geometry
from deltahub.codecs.protocol import Effort
from support.codecs.coded_frames import CodedFrame, delta_frame, float_frame
from support.codecs.deltas import as_words, encode_alone, fine_tune, one_row

Reals = npt.NDArray[np.floating]


def as_reals(words: bytes, dtype: DType) -> Reals:
    if dtype is DType.BF16:
        return (np.frombuffer(words, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(words, f"<f{dtype.itemsize}")


def merged_adapter(dtype: DType, effort: Effort) -> CodedFrame:
    """A base and a product of rank 1 added to it: the encoder finds the product."""
    random, side = np.random.default_rng(0), 64
    base = as_words(random.standard_normal((side, side)) * 0.02, dtype).tobytes()
    product = random.standard_normal((side, 1)) @ random.standard_normal((1, side)) * 2e-3
    merged = as_reals(base, dtype).reshape(side, side) + product
    source = as_words(merged.astype("<f8"), dtype).tobytes()
    return delta_frame(Geometry(dtype, side, side, side, 1), source, base, effort)


def widened(case: CodedFrame, effort: Effort) -> CodedFrame:
    """A frame of a BF16 frame's words as F32, which share trailing zero bits."""
    assert case.base is not None
    source, base = (as_reals(words, DType.BF16).tobytes() for words in (case.source, case.base))
    return delta_frame(replace(case.geometry, dtype=DType.F32), source, base, effort)


def decayed_rows(effort: Effort) -> CodedFrame:
    """All rows but the first four changed only by weight decay: the encoder flags them."""
    random, rows, columns = np.random.default_rng(1), 64, 32
    base = (random.standard_normal((rows, columns)) * 0.02).astype("<f4")
    source = base * np.float32(1 - 1e-3)
    source[:4] += (random.standard_normal((4, columns)) * 2e-4).astype("<f4")
    geometry = Geometry(DType.F32, rows, columns, rows, 1)
    return delta_frame(geometry, source.tobytes(), base.tobytes(), effort)


def noise(n_bytes: int) -> bytes:
    return np.random.default_rng(3).bytes(n_bytes)


def deltas_of_all_modes() -> CodedFrame:
    """Three blocks: coded, equal to the base, and unlike the base."""
    rows, columns = 9, 60
    source, base = fine_tune(DType.BF16, rows * columns)
    third = len(source) // 3
    source = source[:third] + base[third : 2 * third] + noise(third)
    return delta_frame(Geometry(DType.BF16, rows, columns, 3, 1), source, base)


def floats_of_all_modes() -> CodedFrame:
    """Two blocks: weights, and noise."""
    geometry, (words, _) = one_row(DType.F16, 600, 2), fine_tune(DType.F16, 600)
    source = words[: len(words) // 2] + noise(len(words) // 2)
    return CodedFrame("neuzip_lossless", geometry, source, None, encode_alone(geometry, source))


def doubles_of_floats() -> CodedFrame:
    """F64 words that were widened from F32, so they end in zero bits."""
    words = as_reals(fine_tune(DType.F32, 150)[0], DType.F32).astype("<f8").tobytes()
    geometry = one_row(DType.F64, 150)
    return CodedFrame("neuzip_lossless", geometry, words, None, encode_alone(geometry, words))


def tuned_row(dtype: DType, count: int, effort: Effort, step: float = 2e-4) -> CodedFrame:
    return delta_frame(one_row(dtype, count), *fine_tune(dtype, count, step=step), effort)


SMALL_FRAMES = {
    "BF16, fast": tuned_row(DType.BF16, 250, Effort.FAST),
    "F16, default": tuned_row(DType.F16, 250, Effort.DEFAULT),
    "F32, max": tuned_row(DType.F32, 200, Effort.MAX),
    "F8_E4M3, max": tuned_row(DType.F8_E4M3, 500, Effort.MAX, step=1e-3),
    "I8, default": tuned_row(DType.I8, 500, Effort.DEFAULT),
    "I32, fast": tuned_row(DType.I32, 200, Effort.FAST),
    "I64, default": tuned_row(DType.I64, 120, Effort.DEFAULT),
    "BF16, low rank, default": merged_adapter(DType.BF16, Effort.DEFAULT),
    "F16, low rank, max": merged_adapter(DType.F16, Effort.MAX),
    "F32, decayed rows, fast": decayed_rows(Effort.FAST),
    "F32, decayed rows, max": decayed_rows(Effort.MAX),
    "BF16, all modes": deltas_of_all_modes(),
    "F32, stride, fast": widened(tuned_row(DType.BF16, 250, Effort.FAST), Effort.FAST),
    "F32, stride, low rank, default": widened(
        merged_adapter(DType.BF16, Effort.DEFAULT), Effort.DEFAULT
    ),
    "F32, stride, all modes": widened(deltas_of_all_modes(), Effort.MAX),
    "floats, F64": doubles_of_floats(),
    "floats, F8_E5M2": float_frame(DType.F8_E5M2, 500),
    "floats, F16, all modes": floats_of_all_modes(),
}

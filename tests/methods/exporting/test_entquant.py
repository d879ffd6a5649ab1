"""EntQuant: the bits asked for are met, fewer bits lose more, and the search finds good steps."""

import numpy as np
import pytest

from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.integers import IntegerCoding, nearest_words, numbers_of
from deltahub.methods.errors import CannotExport
from deltahub.methods.exporting.entquant import (
    Rounding,
    Sample,
    best_steps,
    choose_penalty,
    measure_sample,
    sample_rows,
)

SHAPES = [(96, 128), (256, 256), (300, 700)]


def matrices(dtype: DType, seed: int = 0) -> list[bytes]:
    """Matrices of different sizes and scales, with heavy tails."""
    random = np.random.default_rng(seed)
    return [
        nearest_words(dtype, random.standard_t(5, shape) * 0.01 * (i + 1)).tobytes()
        for i, shape in enumerate(SHAPES)
    ]


def sample_of(how: IntegerCoding, words: bytes, rows: int) -> Sample:
    row_bytes = how.columns * how.dtype.itemsize
    pieces = [
        words[first * row_bytes : (first + count) * row_bytes]
        for first, count in sample_rows(rows, how.columns)
    ]
    return measure_sample(how, memoryview(b"".join(pieces)), rows * how.columns)


def rounded(dtype: DType, bits: int) -> tuple[float, float]:
    """(bits that an element takes, relative error of all weights)."""
    weights = matrices(dtype)
    codings = [IntegerCoding(dtype, columns) for _, columns in SHAPES]
    samples = [
        sample_of(how, words, rows)
        for how, words, (rows, _) in zip(codings, weights, SHAPES, strict=True)
    ]
    penalty = choose_penalty(samples, bits)
    size, count, lost, whole = 0, 0, 0.0, 0.0
    for how, words, sample in zip(codings, weights, samples, strict=True):
        frames, decoded = Rounding(how, sample.mean, penalty).encode(memoryview(words))
        before, after = (
            numbers_of(dtype, np.frombuffer(each, f"<u{dtype.itemsize}"))
            for each in (words, decoded)
        )
        size += sum(map(len, frames.values()))
        count += len(before)
        lost += float(((after - before) ** 2).sum())
        whole += float((before**2).sum())
    return 8 * size / count, (lost / whole) ** 0.5


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F32], ids=lambda each: each.name)
def test_the_bits_asked_for_are_met_and_fewer_lose_more(dtype: DType) -> None:
    found = [rounded(dtype, bits) for bits in (4, 3, 2)]
    assert [bits for bits, _ in found] == pytest.approx([4, 3, 2], abs=0.1)
    errors = [error for _, error in found]
    assert errors == sorted(errors)
    assert errors[0] < 0.1 < errors[1] < 0.2 < errors[2] < 0.4


def cost(row: np.ndarray, step: float, mean: float, penalty: float) -> float:  # type: ignore[type-arg]
    numbers = np.rint(row / step)
    return float(np.abs(row - step * numbers).sum() / mean + penalty / 128 * np.abs(numbers).sum())


@pytest.mark.parametrize("penalty", [0.5, 4.0, 60.0])
def test_no_step_of_a_fine_grid_is_much_better_than_the_one_found(penalty: float) -> None:
    values = np.random.default_rng(1).standard_normal((6, 500)).astype(np.float32)
    mean = float(np.abs(values).mean())
    for row, step in zip(values, best_steps(values, mean, penalty), strict=True):
        largest = float(np.abs(row).max())
        grid = np.geomspace(largest / 127, 2 * largest, 600)
        best = min(cost(row, float(each), mean, penalty) for each in grid)
        assert cost(row, float(step), mean, penalty) < 1.03 * best


def test_extreme_rows_have_steps_that_are_finite() -> None:
    values = np.zeros((5, 8), np.float32)
    values[1] = 3e38
    values[2] = 1e-45
    values[3, 0] = 1.0
    values[4] = -1e-38
    steps = best_steps(values, 1.0, 4.0)
    assert steps[0] == 0
    assert np.isfinite(steps).all()
    assert (steps[1:] > 0).all()
    how = IntegerCoding(DType.F32, 8)
    words = nearest_words(DType.F32, values.astype(np.float64)).tobytes()
    _, decoded = Rounding(how, 1.0, 4.0).encode(memoryview(words))
    assert np.isfinite(numbers_of(DType.F32, np.frombuffer(decoded, "<u4"))).all()


def test_a_sample_is_whole_rows_from_all_parts_of_a_matrix() -> None:
    assert sample_rows(10, 100) == [(0, 10)]
    runs = sample_rows(100_000, 1024)
    assert runs[0] == (0, 4)
    assert runs[-1] == (93_750, 4)
    assert len(runs) == 16
    assert sample_rows(3, 1 << 22) == [(0, 1)]


def test_bits_that_no_penalty_gives_are_refused() -> None:
    sample = Sample(1, 1.0, tuple(np.linspace(8.0, 2.5, 19)))
    with pytest.raises(CannotExport, match=r"take 2\.50 to 8\.00 bits an element, and not 2"):
        choose_penalty([sample], 2)

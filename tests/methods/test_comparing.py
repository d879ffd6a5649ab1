"""Numbers about the difference of two tensors are those of plain NumPy on the whole tensors."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.methods.comparing.modules import MAX_MODULES, OTHERS, cells_of, place_of
from deltahub.methods.comparing.picture import (
    N_BINS,
    OCTAVES,
    STEPS,
    HeatMap,
    Histogram,
    bin_edges,
    block_means,
    side_of,
)
from deltahub.methods.comparing.slices import Read, Slice
from deltahub.methods.comparing.spectrum import RANK_LIMIT
from deltahub.methods.comparing.tensor import compare_tensor
from support.models import tiny_models as tiny
from support.models.tiny_lora import RANK, merged_lora

Values = npt.NDArray[np.float64]


def reading(first: Values, second: Values, step: int = 7) -> Read:
    """Both in slices of so many rows; a single row in parts of a row."""

    def read() -> Iterator[Slice]:
        a, b = (each.reshape(-1, each.shape[-1]) if each.ndim else each.reshape(1, 1)
                for each in (first, second))  # fmt: skip
        if len(a) > 1:
            for at in range(0, len(a), step):
                x, y = a[at : at + step], b[at : at + step]
                yield Slice(at, 0, x, y, int((x == y).sum()))
            return
        for at in range(0, a.shape[1], step):
            x, y = a[:, at : at + step], b[:, at : at + step]
            yield Slice(0, at, x, y, int((x == y).sum()))

    return read


def expected_rank(difference: Values, share: float) -> int:
    squares = np.linalg.svd(difference, compute_uv=False) ** 2
    reached = np.cumsum(squares) / squares.sum()
    return int(np.searchsorted(reached, share - 1e-9)) + 1


def doubles(tensor: torch.Tensor) -> Values:
    found: Values = tensor.double().numpy()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["up.weight", "down.weight", "embedding.weight", "up.bias"])
def test_a_real_fine_tune_has_the_numbers_of_the_whole_tensors(
    name: str, dtype: torch.dtype
) -> None:
    first = doubles(tiny.cast(tiny.base(), dtype)[name])
    second = doubles(tiny.cast(tiny.finetune(1e-4), dtype)[name])
    found = compare_tensor(first.shape, reading(first, second), 64).numbers
    d = second - first
    assert found["n_same"] == int((first == second).sum())
    assert found["relative"] == pytest.approx(np.linalg.norm(d) / np.linalg.norm(first))
    assert found["largest"] == np.abs(d).max()
    cosine = (first * second).sum() / np.linalg.norm(first) / np.linalg.norm(second)
    assert found["cosine"] == pytest.approx(cosine)
    assert found["mean"] == pytest.approx(d.mean(), rel=1e-9, abs=1e-18)
    assert found["deviation"] == pytest.approx(d.std())
    if d.ndim == 1:
        assert found["rank_limit"] is None
        return
    assert found["rank_limit"] == min(RANK_LIMIT, *d.shape)
    assert found["rank_90"] == expected_rank(d, 0.9)
    assert found["rank_99"] == pytest.approx(expected_rank(d, 0.99), abs=1)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1),
    st.sampled_from([1e-12, 1e-3, 1.0, 1e12]),
)  # fmt: skip
def test_slices_of_any_size_give_the_same_numbers(
    rows: int, columns: int, step: int, seed: int, scale: float
) -> None:
    random = np.random.default_rng(seed)
    first = random.standard_normal((rows, columns))
    moved = random.random((rows, columns)) < 0.5
    second = first + moved * random.standard_normal((rows, columns)) * scale
    d = second - first
    found = compare_tensor(first.shape, reading(first, second, step), 8)
    numbers, histogram = found.numbers, found.detail["histogram"]
    assert numbers["change"] == pytest.approx(np.linalg.norm(d))
    assert numbers["deviation"] == pytest.approx(d.std(), rel=1e-9, abs=1e-30)
    assert numbers["n_same"] == int((d == 0).sum()) == histogram["zero"]
    edges = bin_edges(histogram["top"])
    assert len(edges) == N_BINS + 1
    assert sum(histogram["counts"]) == int((d != 0).sum())
    # Each value lies within the edges of its bin.
    for at, n in enumerate(histogram["counts"]):
        low, high = edges[at], edges[at + 1]
        inside = (d >= low) & (d < high) if low >= 0 else (d > low) & (d <= high)
        assert n == int((inside & (d != 0)).sum())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 12), st.integers(1, 50))
def test_a_heat_map_has_the_means_of_the_blocks(
    rows: int, columns: int, side: int, step: int
) -> None:
    d = np.random.default_rng(rows * columns).standard_normal((rows, columns))
    heat = HeatMap(rows, columns, side)
    for at in range(0, rows, step):
        for left in range(0, columns, step):
            heat.add(at, left, d[at : at + step, left : left + step])
    downs = [rows * i // min(rows, side) for i in range(min(rows, side) + 1)]
    acrosses = [columns * i // min(columns, side) for i in range(min(columns, side) + 1)]
    means = [
        [np.abs(d[top:bottom, left:right]).mean()
         for left, right in pairwise(acrosses)]
        for top, bottom in pairwise(downs)
    ]  # fmt: skip
    assert np.allclose(heat.means(), means)
    shown = np.array(block_means(heat.to_dict()))
    # A byte for each block is exact to half a step.
    assert np.allclose(np.log2(shown / means), 0, atol=OCTAVES / STEPS / 2 + 1e-9)


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_the_rank_of_a_merged_adapter_is_found(rank: int) -> None:
    random = np.random.default_rng(rank)
    weight = random.standard_normal((300, 200)) * 0.05
    up, _ = np.linalg.qr(random.standard_normal((300, rank)))
    down, _ = np.linalg.qr(random.standard_normal((200, rank)))
    second = (weight + up @ down.T).astype(np.float32).astype(np.float64)
    numbers = compare_tensor((300, 200), reading(weight, second), 64).numbers
    assert numbers["rank_99"] == rank
    assert numbers["rank_90"] == math.ceil(0.9 * rank)
    assert numbers["rank_limit"] == RANK_LIMIT


def test_a_trained_adapter_that_was_merged_has_no_more_directions_than_its_rank() -> None:
    first, second = (doubles(each) for each in reversed(merged_lora()))
    numbers = compare_tensor(first.shape, reading(first, second), 64).numbers
    assert numbers["rank_90"] == expected_rank(second - first, 0.9)
    assert numbers["rank_99"] == expected_rank(second - first, 0.99) <= RANK


def test_a_rank_above_the_sketch_is_told_as_such() -> None:
    random = np.random.default_rng(1)
    first = random.standard_normal((500, 400))
    second = first + random.standard_normal((500, 400))
    numbers = compare_tensor((500, 400), reading(first, second), 64).numbers
    assert (numbers["rank_90"], numbers["rank_99"]) == (None, None)
    assert numbers["rank_limit"] == RANK_LIMIT


@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (1, 5), (0,), (3, 0), (2, 3, 4)])
def test_odd_shapes_have_numbers(shape: tuple[int, ...]) -> None:
    first = np.ones(shape)
    pair = reading(first, first * 2) if first.size else lambda: iter(())
    numbers = compare_tensor(shape, pair, 64).numbers
    assert numbers["n_same"] == 0
    assert numbers["relative"] == pytest.approx(1.0 if first.size else 0.0)
    assert numbers["rank_limit"] is None


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    first = np.array([[1.0, np.nan, 3.0, -np.inf], [1.0, 2.0, 1e308, 4.0]])
    second = np.array([[1.5, np.nan, 3.0, 4.0], [1.0, np.inf, -1e308, 4.0]])
    numbers = compare_tensor(first.shape, reading(first, second, 1), 64).numbers
    assert numbers["n_odd"] == 4
    assert numbers["largest"] == 0.5
    assert all(value is None or math.isfinite(value) for value in numbers.values())


def test_a_tensor_of_zeros_has_no_relative_change() -> None:
    numbers = compare_tensor((2, 2), reading(np.zeros((2, 2)), np.ones((2, 2))), 64).numbers
    assert numbers["relative"] is None
    assert numbers["cosine"] is None


def test_the_heat_maps_of_many_tensors_are_bounded() -> None:
    assert [side_of(n) for n in (1, 2048, 2049, 10_000, 100_000)] == [64, 64, 32, 16, 8]


@pytest.mark.parametrize(
    ("name", "layer", "module"),
    [
        ("model.layers.7.self_attn.q_proj.weight", "model.layers.7", "self_attn.q_proj"),
        ("model.layers.7.self_attn.q_proj.bias", "model.layers.7", "self_attn.q_proj"),
        ("model.layers.11.input_layernorm.weight", "model.layers.11", "input_layernorm"),
        ("model.embed_tokens.weight", None, "model.embed_tokens"),
        ("model.layers.3.mlp.experts.12.down_proj.weight", "model.layers.3",
         "mlp.experts.*.down_proj"),
        ("bert.encoder.layer.0.attention.self.query.weight", "bert.encoder.layer.0",
         "attention.self.query"),
        ("bert.encoder.layer.0.output.LayerNorm.gamma", "bert.encoder.layer.0", "output.LayerNorm"),
        ("h.5.attn.c_attn.weight", "h.5", "attn.c_attn"),
        ("transformer.h.5.mlp.c_fc.weight", "transformer.h.5", "mlp.c_fc"),
        ("vit.encoder.layer.2.attention.attention.query.weight", "vit.encoder.layer.2",
         "attention.attention.query"),
        ("encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.block.0",
         "layer.*.SelfAttention.q"),
        ("wte.weight", None, "wte"),
        ("layers.3.weight", "layers.3", "layers"),
        ("7.weight", "7", "7"),
        ("weight", None, "weight"),
    ],
)  # fmt: skip
def test_layers_and_modules_come_from_names(name: str, layer: str | None, module: str) -> None:
    assert place_of(name) == (layer, module)


def _tensor(name: str, **more: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(["n_same", "norm", "change", "relative", "rank_90", "rank_limit"])
    return {"name": name, "status": "changed", "count": 10, **numbers, "n_same": 4, **more}


def test_a_cell_joins_the_tensors_of_a_module() -> None:
    cells = cells_of(
        [
            _tensor("a.0.q.weight", norm=3.0, change=0.3, rank_90=4, rank_limit=128),
            _tensor("a.0.q.bias", norm=4.0, change=0.4),
            _tensor("a.10.q.weight", norm=1.0, change=1.0, rank_limit=128),
            _tensor("a.9.q.weight", status="same", n_same=10),
            _tensor("b.weight", status="only_first", n_same=None),
        ]
    )
    assert [cell["layer"] for cell in cells] == [None, "a.0", "a.9", "a.10"]
    only, first, same, above = cells
    assert (only["n_apart"], only["relative"], only["rank"]) == (1, None, None)
    assert first["relative"] == pytest.approx(0.1)
    assert (first["rank"], first["n_same"], first["count"]) == (4, 8, 20)
    assert (same["relative"], same["rank"]) == (0.0, 0)
    assert (above["rank"], above["is_above"]) == (128, True)


def test_names_of_no_known_kind_become_few_columns() -> None:
    cells = cells_of([_tensor(f"block{i % 3}.part{i}.w") for i in range(200)])
    assert {cell["module"] for cell in cells} == {"block0", "block1", "block2"}
    odd = cells_of([_tensor(f"odd{i}") for i in range(200)])
    assert len(odd) == MAX_MODULES + 1
    assert sum(cell["n_tensors"] for cell in odd if cell["module"] == OTHERS) == 200 - MAX_MODULES
    assert sum(cell["n_tensors"] for cell in odd) == 200


def test_a_histogram_takes_all_doubles() -> None:
    histogram = Histogram()
    histogram.add(np.array([5e-324, -1.7e308, 0.0, 1.0]))
    shown = histogram.to_dict()
    assert (shown["zero"], sum(shown["counts"])) == (1, 3)

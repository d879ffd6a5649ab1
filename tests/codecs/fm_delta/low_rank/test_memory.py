"""The search for low rank takes little beside its frame, whatever the frame's shape."""

import tracemalloc

import pytest
import torch

from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import Words
from deltahub.codecs.fm_delta.low_rank.search import fit_low_rank


def merged(rows: int, columns: int, rank: int) -> tuple[Words, Words]:
    """Words of BF16 before and after an adapter was merged into them."""
    random = torch.Generator().manual_seed(0)
    base = (torch.randn(rows, columns, generator=random) * 0.02).bfloat16()
    left = torch.randn(rows, rank, generator=random) * 1e-3
    tuned = (base.float() + left @ torch.randn(rank, columns, generator=random)).bfloat16()
    before, after = (each.view(torch.uint16).numpy() for each in (base, tuned))
    return before, after


@pytest.mark.parametrize(
    ("rows", "columns", "rank", "most_mib"),
    [(2048, 2048, 30, 32), (64, 1 << 17, 2, 120), (1 << 17, 64, 2, 120)],
)
def test_the_search_takes_little_beside_its_frame(
    rows: int, columns: int, rank: int, most_mib: int
) -> None:
    base, tuned = merged(rows, columns, rank)
    tracemalloc.start()
    try:
        found = fit_low_rank(DType.BF16, tuned, base, rows, columns)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is not None
    assert found.rank == rank
    assert peak <= most_mib << 20

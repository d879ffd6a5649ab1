"""What is told of comparisons."""

from datetime import datetime
from typing import Any

from pydantic import Field

from deltahub.server.schemas.base import Out


class ComparedRevisionOut(Out):
    name: str
    commit: str


class CellOut(Out):
    layer: str | None = Field(description="such as model.layers.7; null outside of all layers")
    module: str = Field(description="such as self_attn.q_proj; * stands for numbers of experts")
    n_tensors: int
    n_changed: int
    n_apart: int = Field(description="tensors that one model lacks, or that have two shapes")
    count: int = Field(description="elements of the tensors that both have in one shape")
    n_same: int = Field(description="of these, elements that are identical bit by bit")
    relative: float | None = Field(description="||B - A|| / ||A|| of the changed tensors")
    rank: int | None = Field(
        description="the largest rank of a matrix's difference, at 90 % of its energy"
    )
    is_above: bool = Field(description="whether the rank is larger than that")


class ComparisonOut(Out):
    id: str
    first: ComparedRevisionOut
    second: ComparedRevisionOut
    totals: dict[str, Any] = Field(description="as docs/compare.md describes them")
    cells: list[CellOut]
    created_at: datetime


class ComparedTensorOut(Out):
    name: str
    status: str = Field(description="same, changed, reshaped, only_first or only_second")
    layer: str | None
    module: str
    dtype: str
    shape: list[int]
    second_dtype: str | None
    second_shape: list[int] | None
    count: int
    n_same: int | None
    n_odd: int | None = Field(description="elements that are infinite or NaN in one of them")
    norm: float | None = Field(description="||A||")
    change: float | None = Field(description="||B - A||")
    relative: float | None
    largest: float | None = Field(description="the largest absolute difference of an element")
    cosine: float | None
    mean: float | None = Field(description="of the difference")
    deviation: float | None = Field(description="of the difference, its standard deviation")
    rank_90: int | None = Field(
        description="directions that hold 90 % of the difference's energy; null above rank_limit"
    )
    rank_99: int | None
    rank_limit: int | None = Field(description="null where no rank was estimated")


class ComparedTensorsOut(Out):
    items: list[ComparedTensorOut]
    total: int = Field(description="tensors that match, on all pages")


class TensorDetailOut(Out):
    tensor: ComparedTensorOut
    histogram: dict[str, Any] | None = Field(description="null for a tensor that was not read")
    heat: dict[str, Any] | None

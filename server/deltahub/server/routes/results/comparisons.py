"""Comparisons of two revisions, which jobs of the kind `compare` have made."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from deltahub.registry.errors import ComparisonNotFound
from deltahub.registry.results.comparisons import read
from deltahub.registry.results.comparisons.read import ComparisonInfo, TensorQuery
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.schemas.base import json_answer
from deltahub.server.schemas.comparisons import (
    ComparedTensorOut,
    ComparedTensorsOut,
    ComparisonOut,
    TensorDetailOut,
)
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/comparisons", tags=["comparisons"])

Order = Literal["name", "relative", "largest", "same", "cosine", "rank", "size"]
Status = Literal["same", "changed", "reshaped", "only_first", "only_second"]
_Name = Annotated[str, Query(max_length=600, description="NAMESPACE/NAME[@REVISION]")]


@router.get("")
def query_comparison(first: _Name, second: _Name, hub: HubDep, caller: CallerDep) -> ComparisonOut:
    """Find the comparison of two revisions, if a job has made it."""
    found = read.find(hub.registry, caller, first, second)
    if found is None:
        raise ComparisonNotFound(
            f"{first} and {second} were not compared yet: ask for a job of the kind compare"
        )
    return _shown(found)


@router.get("/{comparison_id}")
def get_comparison(comparison_id: str, hub: HubDep, caller: CallerDep) -> ComparisonOut:
    """Show the totals of a comparison, and those of each layer and module."""
    return _shown(read.get(hub.registry, caller, comparison_id))


@router.get("/{comparison_id}/tensors", response_model=ComparedTensorsOut)
@reads(is_long=True, is_heavy=True)
def list_compared_tensors(
    comparison_id: str,
    hub: HubDep,
    caller: CallerDep,
    search: Annotated[str, Query(max_length=200)] = "",
    status: Status | None = None,
    layer: Annotated[str | None, Query(max_length=500)] = None,
    module: Annotated[str | None, Query(max_length=500)] = None,
    sort: Order = "relative",
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List the tensors of a comparison. `search`: words of the name."""
    query = TensorQuery(search.split(), status, layer, module, sort, False, offset, limit)
    items, total = read.list_tensors(hub.registry, caller, comparison_id, query)
    shown = [ComparedTensorOut.model_validate(each) for each in items]
    return json_answer(ComparedTensorsOut(items=shown, total=total))


@router.get("/{comparison_id}/tensor")
@reads(is_heavy=True)
def get_compared_tensor(
    comparison_id: str,
    name: Annotated[str, Query(max_length=10_000)],
    hub: HubDep,
    caller: CallerDep,
) -> TensorDetailOut:
    """Show one tensor: its numbers, the histogram and the heat map of its difference."""
    tensor, detail = read.get_tensor(hub.registry, caller, comparison_id, name)
    more: dict[str, Any] = detail or {"histogram": None, "heat": None}
    return TensorDetailOut(tensor=ComparedTensorOut.model_validate(tensor), **more)


def _shown(found: ComparisonInfo) -> ComparisonOut:
    return ComparisonOut.model_validate(found)

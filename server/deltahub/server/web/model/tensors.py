"""Every tensor of a model: sorted and filtered here, page by page."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, get_args

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from deltahub.registry.reports.model.tensors import TensorLine, tensor_table
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.turns import reads
from deltahub.server.web.model.common import load_at
from deltahub.server.web.rendering import quoted_path, render

router = APIRouter(route_class=BoundedRoute)

_PAGE: Final = 100
Column = Literal["place", "name", "dtype", "shape", "codec", "size", "stored", "ratio"]
_KEYS: Final[dict[str, Callable[[TensorLine], Any]]] = {
    "name": lambda line: line.name,
    "dtype": lambda line: line.dtype,
    "shape": lambda line: (len(line.shape), line.shape),
    "codec": lambda line: line.codec,
    "size": lambda line: line.size,
    "stored": lambda line: line.stored,
    "ratio": lambda line: line.ratio,
}


@router.get("/{namespace}/{name}/tensors")
def show_main(namespace: str, name: str) -> Response:
    """Lead to the tensors of main."""
    return RedirectResponse(f"/{quoted_path(f'{namespace}/{name}')}/tensors/main", 307)


@router.get("/{namespace}/{name}/tensors/{revision}")
@reads(is_long=True, is_heavy=True)
def show_tensors(
    namespace: str,
    name: str,
    revision: str,
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    q: Annotated[str, Query(max_length=200)] = "",
    file: Annotated[str, Query(max_length=1100)] = "",
    sort: Column = "place",
    down: bool = False,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """Show the tensors whose name contains `q`, in order of a column."""
    at = load_at(hub, viewer, namespace, name, revision)
    if at.row is None:
        return render(request, hub, viewer, "model/empty.html", tab="tensors", model=at.model)
    table = tensor_table(hub.registry, hub.reader, at.row)
    lines = _chosen(table.lines, q, file)
    if sort != "place":
        lines = sorted(lines, key=_KEYS[sort], reverse=down)
    first = (page - 1) * _PAGE
    return render(
        request, hub, viewer, "model/tensors.html", model=at.model, at=at,
        lines=lines[first : first + _PAGE], first=first, n_found=len(lines), n_all=len(table.lines),
        n_waiting=table.n_waiting, size=sum(each.size for each in lines),
        stored=sum(each.stored for each in lines), q=q, file=file, sort=sort, down=down, page=page,
        n_pages=max(-(-len(lines) // _PAGE), 1), columns=get_args(Column)[1:],
        n_files=len({each.file for each in table.lines}),
    )  # fmt: skip


def _chosen(lines: Sequence[TensorLine], q: str, file: str) -> Sequence[TensorLine]:
    words = q.lower().split()
    if not words and not file:
        return lines
    return [
        each
        for each in lines
        if (not file or each.file == file) and all(word in each.name.lower() for word in words)
    ]

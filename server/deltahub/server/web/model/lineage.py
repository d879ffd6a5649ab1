"""Where a model comes from, and what was made of it."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.lineage.graph import MOST_NODES, lineage_graph
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.turns import reads
from deltahub.server.web.content import graph_layout
from deltahub.server.web.model.common import load_model
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)


@router.get("/{namespace}/{name}/lineage")
@reads(is_long=True)
def show_lineage(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep
) -> Response:
    """Show the family of a model as a graph, and as a list."""
    model = load_model(hub, viewer, f"{namespace}/{name}")
    graph = lineage_graph(hub.registry, viewer, model.name)
    return render(
        request, hub, viewer, "model/lineage.html", model=model, graph=graph, most=MOST_NODES,
        layout=graph_layout.place(graph), items=graph_layout.as_list(graph),
        node_width=graph_layout.WIDTH, node_height=graph_layout.HEIGHT,
    )  # fmt: skip

"""Models by what they are, and the family of one."""

from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from deltahub.codecs.dtypes import HEADER_BITS
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.lists.model_tags import Role
from deltahub.registry.catalog.lists.search import Order
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.lineage.graph import lineage_graph
from deltahub.registry.names import quoted
from deltahub.registry.reports.model.lists import ModelLine, ModelQuery, find_models
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.schemas.base import json_answer
from deltahub.server.schemas.models import (
    LineageLinkOut,
    LineageModelOut,
    LineageOut,
    ModelOut,
    ModelPage,
)
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, tags=["models"])

_MOST: Final = 100
_MOST_WORDS: Final = 20
_Word = Annotated[str | None, Query(max_length=200)]
_Words = Annotated[list[str], Query(max_length=20)]
_Number = Annotated[float | None, Query(ge=0, allow_inf_nan=False)]


@router.get("/models", response_model=ModelPage)
@reads(is_long=True)
def list_models(
    hub: HubDep,
    caller: CallerDep,
    search: Annotated[str, Query(max_length=400, description="words of the name")] = "",
    namespace: _Word = None,
    task: _Word = None,
    library: _Word = None,
    base: Annotated[
        str | None, Query(max_length=200, description="namespace/name, declared or measured")
    ] = None,
    tag: _Words = [],  # noqa: B006 - FastAPI copies it
    dtype: _Word = None,
    role: Role | None = None,
    min_parameters: _Number = None,
    max_parameters: _Number = None,
    private: Annotated[bool, Query(description="private ones only")] = False,
    sort: Order = "changed",
    cursor: Annotated[str | None, Query(description="next_cursor of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST)] = 30,
) -> Response:
    """List the models that the caller may read and that match all of what is given.

    Tags, roles, dtypes and parameters are those of models with files. A page may have fewer items
    than `limit`, or none, and still a next one.
    """
    if dtype is not None and dtype not in HEADER_BITS:
        raise InvalidRequest(f"{quoted(dtype)} is no dtype: one of {', '.join(HEADER_BITS)}")
    words = search.split()
    if len(words) > _MOST_WORDS:
        raise InvalidRequest(f"search takes {_MOST_WORDS} words, and has {len(words)}")
    query = ModelQuery(
        words=tuple(words),
        namespace=namespace,
        tags=frozenset(each for each in (*tag, task, library) if each),
        base=base,
        dtype=dtype,
        role=role,
        min_parameters=min_parameters,
        max_parameters=max_parameters,
        only_private=private,
        order=sort,
    )
    spent = Spent(hub.settings.page_bytes, hub.settings.page_entries)
    found = find_models(hub.registry, hub.reader, caller, query, cursor, limit, spent)
    return json_answer(ModelPage(items=list(map(_shown, found.items)), next_cursor=found.after))


@router.get("/repositories/{namespace}/{name}/lineage")
@reads(is_long=True)
def get_lineage(namespace: str, name: str, hub: HubDep, caller: CallerDep) -> LineageOut:
    """Show what a model derives from and what derives from it, as far as the caller may read it."""
    graph = lineage_graph(hub.registry, caller, f"{namespace}/{name}")
    names = {node.id: node.name for node in graph.nodes}
    return LineageOut(
        models=[
            LineageModelOut(
                name=node.name, private=node.is_private, layer=node.layer, relation=node.relation
            )
            for node in graph.nodes
        ],
        links=[
            LineageLinkOut(
                parent=names[link.parent], child=names[link.child], declared=link.is_declared,
                share=link.share,
            )
            for link in graph.links
        ],
        more=graph.n_more,
    )  # fmt: skip


def _shown(line: ModelLine) -> ModelOut:
    usage = line.usage
    return ModelOut(
        name=line.name,
        private=line.is_private,
        role=line.role,
        task=line.facts.pipeline,
        library=line.facts.library,
        base=line.base,
        parameters=None if line.facts.parameters is None else dict(line.facts.parameters),
        head=None if line.listed.head is None else line.listed.head.commit,
        created_at=line.listed.repository.created_at,
        changed_at=line.changed_at,
        downloads=line.downloads,
        logical_bytes=None if usage is None else usage.logical_bytes,
        stored_bytes=None if usage is None else usage.stored_bytes,
    )

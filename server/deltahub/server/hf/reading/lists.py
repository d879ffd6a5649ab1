"""Lists of models: filtered, and page by page at a bounded cost."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from deltahub.registry import Revision, cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.lists import search
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hf.reading.model_info import (
    SIBLINGS,
    ModelRows,
    facts_of,
    list_json,
    load_rows,
    model_json,
    with_siblings,
)
from deltahub.server.hf.reading.queries import ModelFilter, parse_query
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.public_url import origin_of
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.long_answers import answer_in_pieces, json_text
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/api/models")

_PAGE: Final = 100
_MAX_PAGE: Final = 1000
_MAX_EXAMINED: Final = 500  # most models that are examined for one page of a filtered list
_MAX_TEXT: Final = 1 << 20  # bytes of JSON, without siblings, after which a page ends
# Models whose cards are in memory at once: a card may have 256 KiB.
_CARDS: Final = 20

Expand = Annotated[list[str] | None, Query()]


@dataclass(frozen=True)
class _Shape:
    """Which properties of its models a list shows."""

    full: bool
    card: bool
    config: bool
    expand: list[str] | None

    def has(self, name: str) -> bool:
        """Whether a property is shown that costs more than the others."""
        if self.expand is not None:
            return name in self.expand
        return name == SIBLINGS and self.full

    @property
    def has_files(self) -> bool:
        """Whether cards or configurations are shown."""
        if self.expand is not None:
            return not {"cardData", "config"}.isdisjoint(self.expand)
        return self.full or self.card or self.config


@dataclass
class _Page:
    """The models of one page so far. after: the cursor of the last that was examined."""

    size: int
    after: str | None
    shown: list[tuple[dict[str, Any], Revision | None]] = field(default_factory=list)
    n_examined: int = 0
    n_text: int = 0

    @property
    def is_full(self) -> bool:
        return (
            len(self.shown) >= self.size
            or self.n_examined >= _MAX_EXAMINED
            or self.n_text > _MAX_TEXT
        )


@router.get("")
@reads(is_long=True)
def list_models(
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    author: str | None = None,
    limit: Annotated[int, Query(ge=1)] = _PAGE,
    full: bool = False,
    card: Annotated[bool, Query(alias="cardData")] = False,
    config: bool = False,
    expand: Expand = None,
    cursor: str | None = None,
) -> Response:
    """List the models that the caller may read, the newest or the last changed first.

    A page that costs too much ends early. Each page has one model at least that was examined, and a
    link to the next.
    """
    filters = parse_query(request.query_params)
    shape = _Shape(full, card, config, expand)
    page = _Page(min(limit, _MAX_PAGE), cursor)
    is_over = filters.is_empty or _fill(hub, caller, page, author, filters, shape)
    headers = {}
    if not is_over and page.after is not None:
        query = [(k, v) for k, v in request.query_params.multi_items() if k != "cursor"]
        url = f"{origin_of(request)}/api/models?{urlencode([*query, ('cursor', page.after)])}"
        headers["Link"] = f'<{url}>; rel="next"'
    pieces = _pieces(hub, page, has_siblings=shape.has(SIBLINGS))
    return answer_in_pieces(pieces, hub.reads, client_key(request, caller), headers)


def _fill(
    hub: Hub,
    caller: Caller | None,
    page: _Page,
    author: str | None,
    filters: ModelFilter,
    shape: _Shape,
) -> bool:
    """Examine models until the page is full or has cost enough; whether no model is left."""
    spent = Spent(hub.settings.page_bytes, hub.settings.page_entries)
    while True:
        n_batch = min(page.size - len(page.shown), _CARDS if shape.has_files else _PAGE)
        with hub.registry.db.read() as session:
            found = search.search(
                session, caller, namespace=author, words=filters.words,
                keys=filters.keys(session, caller), order=filters.order, after=page.after,
                limit=n_batch,
            )  # fmt: skip
            rows = load_rows(
                session, caller, [(one, one.head) for one in found.items], spent,
                has_storage=shape.has("usedStorage"), has_files=shape.has_files,
            )  # fmt: skip
        for number, each in enumerate(rows, 1):
            cancellation.check()
            _examine(hub, page, each, filters, shape, spent)
            page.after = each.listed.cursor(filters.order)
            if page.is_full or spent.is_over:
                return number == len(rows) and found.after is None
        if found.after is None:
            return True
        page.after = found.after
        if len(rows) < n_batch:
            return False  # the search has looked at enough for one page


def _examine(
    hub: Hub, page: _Page, rows: ModelRows, filters: ModelFilter, shape: _Shape, spent: Spent
) -> None:
    facts = facts_of(hub, rows, spent)
    info = model_json(rows, facts)
    page.n_examined += 1
    if not filters.matches(info):
        return
    shown = list_json(
        info, full=shape.full, card=shape.card, config=shape.config, expand=shape.expand
    )
    page.shown.append((shown, rows.revision))
    page.n_text += len(json_text(shown))
    if shape.has(SIBLINGS):
        spent.n_entries += facts.n_files


def _pieces(hub: Hub, page: _Page, *, has_siblings: bool) -> Iterator[bytes]:
    begin = b"["
    for shown, head in page.shown:
        yield begin
        begin = b","
        if has_siblings:
            yield from with_siblings(hub, shown, head)
        else:
            yield json_text(shown)
    yield b"[]" if not page.shown else b"]"

"""The first page of a model: its card, and what it is."""

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access.repositories import DEFAULT_BRANCH
from deltahub.registry.cards.card import CARD, MAX_CARD_BYTES
from deltahub.registry.cards.facts import read_small
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.catalog.history import ancestors, log
from deltahub.registry.catalog.lists.search import Listed
from deltahub.registry.reports.model.lists import ModelLine, describe_model
from deltahub.registry.upgrades.shown import list_upgrades
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.web.content.markdown import render_card
from deltahub.server.web.jobs.reports import has_report
from deltahub.server.web.model.common import load_at
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)

# Fields of a card that the page shows as chips; each leads to the models that have it too.
_FIELDS: Final = (("language", "language"), ("datasets", "dataset:"), ("tags", ""))
_MOST_CHIPS: Final = 30
_MESSAGE_BYTES: Final = 64 << 10
# Of a base; the page of upgrades has all.
_MOST_UPGRADES: Final = 5


@router.get("/{namespace}/{name}")
def show_model(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep
) -> Response:
    """Show a model's card, and beside it what the model is."""
    at = load_at(hub, viewer, namespace, name, DEFAULT_BRANCH)
    shown: dict[str, Any] = {"model": at.model, "at": at, "card": None, "line": None}
    if at.row is None:
        return render(request, hub, viewer, "model/empty.html", tab="card", **shown)
    listed = Listed(at.repository, at.model.name, at.row)
    spent = Spent(hub.settings.page_bytes, hub.settings.page_entries)
    line = describe_model(hub.registry, hub.reader, viewer, listed, spent)
    with hub.registry.db.read() as session:
        found = entries_at(session, at.row, [CARD])
        chain = ancestors(session, at.row)
        (last,) = log(session, chain[:1], _MESSAGE_BYTES)
    if CARD in found:
        text = read_small(hub.reader, found[CARD], MAX_CARD_BYTES)
        shown["card"] = text and render_card(text, found[CARD].sha256, at.model.name, at.name)
    shown |= {"line": line, "last": last, "n_commits": len(chain), "chips": _chips(line)}
    shown["has_report"] = has_report(hub, at.row)
    shown["upgrades"] = list_upgrades(
        hub.registry, viewer, base=at.model.name, limit=_MOST_UPGRADES
    )
    return render(request, hub, viewer, "model/overview.html", **shown)


def _chips(line: ModelLine) -> list[tuple[str, str]]:
    """(tag by which models are found, what the chip says) for fields of the card."""
    card = line.facts.card or {}
    chips: list[tuple[str, str]] = []
    for field, prefix in _FIELDS:
        values = card.get(field)
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, str | int) and str(value):
                tag = f"{prefix}{value}" if prefix.endswith(":") else str(value)
                chips.append((tag, tag[:60]))
    return list(dict.fromkeys(chips))[:_MOST_CHIPS]

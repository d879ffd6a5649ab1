"""Upgrades of bases: the list, and the table of one with the buttons that decide on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from deltahub.methods.kinds.kind import fault_text
from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import InvalidRequest, RegistryError
from deltahub.registry.upgrades import decisions, put_back, shown
from deltahub.registry.upgrades.shown import MoveInfo
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.errors import STATUS_OF, public_text
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.schemas.upgrades import ApproveIn
from deltahub.server.turns import reads
from deltahub.server.web.forms import FormDep, number_in
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-/upgrades")

# The ways to move an adapter, the cheapest first; each is a column of the table.
RUNGS: Final = ("freeze", "copy", "activation_map", "trans_lora", "titok")
_PAGE: Final = 50
_BEGUN: Final = ("approved", "queued", "running")
_Id = Annotated[int, Path(ge=1, lt=1 << 63)]


@dataclass(frozen=True)
class Cell:
    """One way to move one adapter. agreed, low, high: as measured; seconds: planned, or taken."""

    why_not: str | None
    seconds: float | None
    agreed: float | None = None
    low: float | None = None
    high: float | None = None
    is_chosen: bool = False


@dataclass(frozen=True)
class Row:
    """An adapter. cells: for RUNGS; None for a way that was not to be tried."""

    move: MoveInfo
    cells: tuple[Cell | None, ...]

    @property
    def memory_bytes(self) -> int | None:
        """What the move has taken; before it, about what it takes."""
        peaks = [(each.get("cost") or {}).get("peak_bytes") or 0 for each in self.move.measured]
        return max(peaks, default=0) or self.move.memory_bytes

    @property
    def told(self) -> tuple[str, ...]:
        """Sentences on the adapter, each once: what the plan notes and lacks, how it ended, and why
        some ways do not apply.
        """
        move = self.move
        found = [*move.notes, *move.missing, move.why_not, move.why]
        reasons: dict[str, list[str]] = {}
        for rung, cell in zip(RUNGS, self.cells, strict=True):
            if cell is not None and cell.why_not is not None:
                reasons.setdefault(cell.why_not, []).append(rung)
        # One that stands above need not be told again for each way.
        known = "; ".join(each for each in found if each)
        found += [
            f"{', '.join(rungs)}: {why}" for why, rungs in reasons.items() if why not in known
        ]
        return tuple(dict.fromkeys(each for each in found if each))


@router.get("")
@reads(is_long=True)
def show_upgrades(
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    base: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[str, Query(max_length=20)] = "",
    before: Annotated[int | None, Query(ge=1, lt=1 << 63)] = None,
) -> Response:
    """Show the upgrades whose bases the viewer may read."""
    found = shown.list_upgrades(
        hub.registry, viewer, base=base or None, state=state or None, before=before, limit=_PAGE
    )
    last = found[-1].id if len(found) == _PAGE else None
    return render(
        request, hub, viewer, "upgrades/list.html", upgrades=found, base=base, state=state,
        states=shown.STATES, last=last,
    )  # fmt: skip


@router.get("/{upgrade_id}")
@reads(is_long=True)
def show_upgrade(upgrade_id: _Id, request: Request, hub: HubDep, viewer: CallerDep) -> Response:
    """Show the adapters of an upgrade by the ways to move them."""
    return _page(request, hub, viewer, upgrade_id)


@router.post("/{upgrade_id}/approve")
def approve(
    upgrade_id: _Id, request: Request, hub: HubDep, viewer: CallerDep, form: FormDep
) -> Response:
    """Let one adapter move, or all that can."""

    def decide() -> None:
        given: dict[str, Any] = {"adapters": _adapters(form)}
        given |= {name: form[name] for name in ("prompts", "template") if form.get(name)}
        if form.get("max_new_tokens"):
            given["max_new_tokens"] = number_in(form, "max_new_tokens")
        try:
            body = ApproveIn.model_validate(given)
        except ValidationError as error:
            raise InvalidRequest("; ".join(map(fault_text, error.errors()))) from error
        decisions.approve(hub.registry, viewer, upgrade_id, body.adapters, body.task)

    return _decided(request, hub, viewer, upgrade_id, decide)


@router.post("/{upgrade_id}/reject")
def reject(
    upgrade_id: _Id, request: Request, hub: HubDep, viewer: CallerDep, form: FormDep
) -> Response:
    """Leave one adapter on its old base, or all that have not begun."""
    adapters = _adapters(form)

    def decide() -> None:
        decisions.reject(hub.registry, viewer, upgrade_id, adapters)

    return _decided(request, hub, viewer, upgrade_id, decide)


@router.post("/{upgrade_id}/put-back")
def put_upgrade_back(
    upgrade_id: _Id, request: Request, hub: HubDep, viewer: CallerDep, form: FormDep
) -> Response:
    """Stop the moves of an upgrade, and delete what they made."""

    def decide() -> None:
        put_back.put_back(hub.registry, viewer, upgrade_id)

    return _decided(request, hub, viewer, upgrade_id, decide)


def _adapters(form: Mapping[str, str]) -> list[str] | None:
    return [form["adapter"]] if form.get("adapter") else None


def _decided(
    request: Request,
    hub: Hub,
    viewer: Caller | None,
    upgrade_id: int,
    decide: Callable[[], None],
) -> Response:
    try:
        decide()
    except RegistryError as error:
        status, problem = STATUS_OF.get(error.code, 422), public_text(error, request)
        return _page(request, hub, viewer, upgrade_id, status, problem)
    return RedirectResponse(f"/-/upgrades/{upgrade_id}", 303)


def _page(
    request: Request,
    hub: Hub,
    viewer: Caller | None,
    upgrade_id: int,
    status: int = 200,
    problem: str | None = None,
) -> Response:
    upgrade, moves = shown.get_upgrade(hub.registry, viewer, upgrade_id)
    return render(
        request, hub, viewer, "upgrades/one.html", status, upgrade=upgrade, rungs=RUNGS,
        rows=[Row(move, cells_of(move)) for move in moves], problem=problem,
    )  # fmt: skip


def cells_of(move: MoveInfo) -> tuple[Cell | None, ...]:
    """The ways of RUNGS: what was measured of each, or what was planned."""
    planned = {str(each.get("rung")): each for each in move.rungs}
    if move.state in _BEGUN and not any(
        each.get("why_not") is None for each in move.rungs if each.get("rung") != "freeze"
    ):
        # It lacked a task when it was planned, and was approved with one: no way was planned then.
        planned = {}
    measured = {str(each.get("rung")): each for each in move.measured}
    return tuple(_cell(move, rung, planned.get(rung), measured.get(rung)) for rung in RUNGS)


def _cell(
    move: MoveInfo,
    rung: str,
    planned: Mapping[str, Any] | None,
    measured: Mapping[str, Any] | None,
) -> Cell | None:
    if measured is None:
        if planned is None:
            return None
        return Cell(planned.get("why_not"), planned.get("seconds"))
    agreed, cost = measured.get("agreed") or {}, measured.get("cost") or {}
    return Cell(
        measured.get("why_not"),
        cost.get("seconds"),
        agreed.get("value"),
        agreed.get("lower"),
        agreed.get("upper"),
        rung == move.chosen,
    )

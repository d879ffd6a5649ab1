"""The page that compares two revisions: it asks for the job, follows it, and shows the report."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from deltahub.methods.kinds.compare import CompareArguments
from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import JobNotFound, NotFound, RegistryError
from deltahub.registry.jobs import requests
from deltahub.registry.jobs.requests import JobInfo
from deltahub.registry.registry import Registry
from deltahub.registry.results import asked
from deltahub.registry.results.asked import Wish
from deltahub.registry.results.comparisons import read
from deltahub.registry.results.comparisons.estimate import PairEstimate, estimate
from deltahub.registry.results.comparisons.pair import usual_pair
from deltahub.registry.results.comparisons.read import ComparisonInfo, TensorQuery
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.errors import STATUS_OF, public_text
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.turns import reads
from deltahub.server.web.forms import FormDep
from deltahub.server.web.model.common import load_model
from deltahub.server.web.model.comparing.heat import lay_out
from deltahub.server.web.model.comparing.scales import TITLES, View
from deltahub.server.web.model.comparing.tensor import draw_blocks, draw_histogram
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)

_ROWS: Final = 50
# Unfinished comparisons of the viewer that are looked through for one of this pair.
_MOST_JOBS: Final = 50
# Cells of a heat map whose table has links.
_MOST_LINKS: Final = 1500
_Text = Annotated[str, Query(max_length=600)]
Order = Literal["name", "relative", "largest", "same", "cosine", "rank", "size"]
Status = Literal["", "same", "changed", "reshaped", "only_first", "only_second"]


@dataclass(frozen=True)
class _Choice:
    """What is to be compared. first, second: `namespace/name@revision`, as they were written."""

    first: str
    second: str

    @property
    def query(self) -> dict[str, str]:
        return {"base": self.first, "with": self.second}


@router.get("/{namespace}/{name}/compare")
@reads(is_heavy=True)
def show_comparison(
    namespace: str,
    name: str,
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    base: _Text = "",
    other: Annotated[str, Query(alias="with", max_length=600)] = "",
    job: _Text = "",
    view: View = "relative",
    q: Annotated[str, Query(max_length=200)] = "",
    status: Status = "",
    layer: Annotated[str | None, Query(max_length=2000)] = None,
    module: Annotated[str | None, Query(max_length=2000)] = None,
    sort: Order = "relative",
    reverse: bool = False,
    page: Annotated[int, Query(ge=1, le=10_000)] = 1,
    tensor: Annotated[str, Query(max_length=10_000)] = "",
) -> Response:
    """Show the comparison of two revisions, or what it would cost, or how far it is."""
    model = load_model(hub, viewer, f"{namespace}/{name}")
    choice = _choice(hub, viewer, model.name, base, other)
    shown: dict[str, Any] = {"model": model, "choice": choice, "fault": None, "found": None,
                             "job": None, "planned": None}  # fmt: skip
    if choice is None:
        return render(request, hub, viewer, "model/compare/page.html", **shown)
    try:
        found = read.find(hub.registry, viewer, choice.first, choice.second)
        if found is None:
            shown["job"], shown["planned"] = _unfinished(hub, viewer, choice, job)
            if shown["job"] is not None and shown["job"].state == "done":  # a moment ago
                found = read.find(hub.registry, viewer, choice.first, choice.second)
    except RegistryError as error:
        shown["fault"] = public_text(error, request)
        code = STATUS_OF.get(error.code, 422)
        return render(request, hub, viewer, "model/compare/page.html", code, **shown)
    if found is None:
        return render(request, hub, viewer, "model/compare/page.html", **shown)
    shown["found"] = found
    if tensor:
        return _show_tensor(request, hub, viewer, shown, tensor)
    query = TensorQuery(
        q.split(), status or None, layer, module, sort, reverse, (page - 1) * _ROWS, _ROWS
    )
    items, total = read.list_tensors(hub.registry, viewer, found.id, query)
    heat = lay_out(found.cells, view)
    shown |= {
        "heat": heat, "views": TITLES, "view": view, "has_links": len(heat.places) <= _MOST_LINKS,
        "tensors": items, "total": total, "query": query, "page": page,
        "n_pages": -(-total // _ROWS), "q": q, "chosen_status": status, "sort": sort,
        "reverse": reverse,
    }  # fmt: skip
    return render(request, hub, viewer, "model/compare/page.html", **shown)


@router.post("/{namespace}/{name}/compare")
def start_comparison(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep, form: FormDep
) -> Response:
    """Ask for the job, and show how far it is."""
    model = load_model(hub, viewer, f"{namespace}/{name}")
    choice = _Choice(
        _full(model.name, form.get("base", "")), _full(model.name, form.get("with", ""))
    )
    try:
        arguments = CompareArguments(first=choice.first, second=choice.second)
    except ValidationError:
        # The page says at the form what is wrong with the names.
        return RedirectResponse(f"/{model.name}/compare?{urlencode(choice.query)}", 303)
    given = arguments.model_dump(mode="json")
    wish = Wish("compare", given, None, arguments.inputs(), only_reads=True)
    made = asked.ask(hub.registry, viewer, wish)
    query = urlencode({**choice.query, "job": made.id})
    return RedirectResponse(f"/{model.name}/compare?{query}", 303)


def _choice(hub: Hub, viewer: Caller | None, name: str, base: str, other: str) -> _Choice | None:
    """What the query names, or what the model is mostly compared with; None if it is empty."""
    with hub.registry.db.read() as session:
        usual = usual_pair(session, viewer, name)
    if base and other:
        return _Choice(_full(name, base), _full(name, other))
    if usual is None:
        return None
    if other:
        return _Choice(usual[1], _full(name, other))
    return _Choice(_full(name, base) if base else usual[0], usual[1])


def _full(name: str, text: str) -> str:
    """A revision with the name of its model. A text without a slash is a revision of this one."""
    text = text.strip()
    return text if "/" in text.partition("@")[0] else f"{name}@{text.removeprefix('@') or 'main'}"


def _unfinished(
    hub: Hub, viewer: Caller | None, choice: _Choice, job_id: str
) -> tuple[JobInfo | None, PairEstimate | None]:
    """The job that compares these, and else what it would cost."""
    planned = estimate(hub.registry, hub.reader, viewer, choice.first, choice.second)
    wanted = [planned.pair.first.revision_id, planned.pair.second.revision_id]
    job = _job(hub.registry, viewer, wanted, job_id)
    return job, planned


def _job(reg: Registry, viewer: Caller | None, wanted: list[int], job_id: str) -> JobInfo | None:
    if viewer is None:
        return None
    if job_id:
        try:
            named = requests.get_job(reg, viewer, job_id)
        except JobNotFound:
            named = None
        if named is not None and named.payload.get("revisions") == wanted:
            return named
    for state in ("running", "queued"):
        for each in requests.list_jobs(reg, viewer, state, kind="compare", limit=_MOST_JOBS):
            if each.payload.get("revisions") == wanted:
                return each
    return None


def _show_tensor(
    request: Request, hub: Hub, viewer: Caller | None, shown: dict[str, Any], name: str
) -> Response:
    found: ComparisonInfo = shown["found"]
    try:
        tensor, detail = read.get_tensor(hub.registry, viewer, found.id, name)
    except NotFound as error:
        fault = public_text(error, request)
        shown |= {"fault": fault, "found": None}
        return render(request, hub, viewer, "model/compare/page.html", 404, **shown)
    shown |= {
        "tensor": tensor,
        "histogram": None if detail is None else draw_histogram(detail["histogram"]),
        "blocks": None if detail is None else draw_blocks(detail["heat"], tensor["shape"]),
    }
    return render(request, hub, viewer, "model/compare/tensor.html", **shown)

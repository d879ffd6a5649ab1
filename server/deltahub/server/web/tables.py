"""Pages of tables: filters, orders and pages from the address, and exports of the same rows."""

import json
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted
from deltahub.registry.reports.lists.pages import Asked
from deltahub.server.hub import Hub
from deltahub.server.tables.table import Table
from deltahub.server.web.rendering import render

_ROWS: Final = 50
_OWN: Final = frozenset({"sort", "after", "format"})


def show_table(
    request: Request, hub: Hub, viewer: Caller, table: Table, template: str, **shown: Any
) -> Response:
    """Show a page of a table, or send its rows: ?format=csv or ?format=json.

    The template gets the table, its `page`, the `given` filters and the order, `sort`.
    """
    query = request.query_params
    given = {key: value for key, value in query.items() if key not in _OWN and value}
    form = query.get("format", "html")
    asked = Asked(query.get("sort") or None, query.get("after") or None, _ROWS)
    if form in ("csv", "json"):
        return _export(request, hub, viewer, table, asked, given, form)
    if form != "html":
        raise InvalidRequest(f"format {quoted(form)} is unknown: csv or json")
    page = table.page(hub, viewer, asked, given)
    return render(
        request, hub, viewer, template, table=table, page=page, given=given,
        sort=asked.sort or table.sort, **shown,
    )  # fmt: skip


def _export(
    request: Request,
    hub: Hub,
    viewer: Caller,
    table: Table,
    asked: Asked,
    given: dict[str, str],
    form: str,
) -> Response:
    page = table.many(hub, viewer, asked, given)
    headers = {"Content-Disposition": f'attachment; filename="{table.name}.{form}"'}
    if page.after is not None:
        pairs = {**dict(request.query_params), "after": page.after}
        headers["Link"] = f'<{request.url.path}?{urlencode(pairs)}>; rel="next"'
    if form == "csv":
        return Response(table.csv(page.items), media_type="text/csv", headers=headers)
    body = {"items": table.plain(page.items), "after": page.after}
    return Response(json.dumps(body), media_type="application/json", headers=headers)

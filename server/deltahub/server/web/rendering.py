"""Makes pages of templates, with what every page needs: the viewer, tokens, and helpers."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import (
    ChoiceLoader,
    Environment,
    PackageLoader,
    PrefixLoader,
    StrictUndefined,
    select_autoescape,
)
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from deltahub.registry.access.caller import Caller
from deltahub.server.browser_sessions import csrf_token
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.hub import Hub
from deltahub.server.public_url import prefix_of
from deltahub.server.web.assets import asset
from deltahub.server.web.formats import FILTERS
from deltahub.server.web.headers import NONCE

_PACKAGE: Final = "deltahub.server.web"
# Where an attribute begins that is an address on the hub. Text of users has no plain quotes here.
_ADDRESS: Final = re.compile(
    r'(?<=[ \n])(?:(?:href|src|action|hx-[a-z:-]+)="(?=/(?!/))|data-[a-z-]+="(?=/-/))'
)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=ChoiceLoader(
            [
                PackageLoader(_PACKAGE, "templates"),
                # Each kind of job has its templates in its own folder: kinds/merge/form.html.
                PrefixLoader({"kinds": PackageLoader(_PACKAGE, "kinds")}),
            ]
        ),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.filters["path"] = quoted_path
    environment.filters["part"] = quoted_part
    environment.globals.update(asset=asset, icon=icon, with_query=with_query, own_path=own_path)
    return environment


def render(
    request: Request,
    hub: Hub,
    viewer: Caller | None,
    template: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    /,
    **shown: Any,
) -> HTMLResponse:
    """Make a page. shown: what the template names besides `viewer`, `nonce` and `csrf`.

    Runs in a thread if it is long: templates are not asynchronous.
    """
    return HTMLResponse(text_of(request, hub, viewer, template, **shown), status, headers)


def text_of(request: Request, hub: Hub, viewer: Caller | None, template: str, **shown: Any) -> str:
    """Return the text of a page, or of a part that a page gets later."""
    text = (
        _templates()
        .get_template(template)
        .render(
            request=request,
            viewer=viewer,
            nonce=getattr(request.state, NONCE, ""),
            csrf=csrf_token(hub.signer, viewer),
            prefix=prefix_of(request),
            **shown,
        )
    )
    prefix = prefix_of(request)
    return _ADDRESS.sub(lambda found: found[0] + prefix, text) if prefix else text


def icon(name: str, label: str | None = None) -> Markup:
    """Return an icon of source/icons.txt. label: what it says, where no text beside it does."""
    said = Markup('aria-hidden="true"')
    if label:
        said = Markup('role="img" aria-label="{}"').format(label)
    return Markup('<svg class="icon" {}><use href="{}#{}"></use></svg>').format(
        said, asset("icons.svg"), name
    )


def with_query(request: Request, **changes: str | int | None) -> str:
    """Return the page's own address with some parameters changed, or taken away by None."""
    pairs = [(k, v) for k, v in request.query_params.multi_items() if k not in changes]
    pairs += [(k, str(v)) for k, v in changes.items() if v is not None]
    path = own_path(request)
    return f"{path}?{urlencode(pairs)}" if pairs else path


def own_path(request: Request) -> str:
    """Return the path of the page's own address. Request.url ends at a `?` in a file's name."""
    return "/".join(quote(unescaped(part), safe="") for part in request.scope["path"].split("/"))


def quoted_path(text: str) -> str:
    """Return text as part of an address: a path with its slashes."""
    return quote(text, safe="/")


def quoted_part(text: str) -> str:
    """Return text as one part of an address: its slashes are escaped, as those of a branch."""
    return quote(text, safe="")

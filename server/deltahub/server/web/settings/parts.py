"""What all pages of settings share: their viewer is logged in, and errors stand at the form."""

from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import RedirectResponse, Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import RegistryError, Unauthorized
from deltahub.server.errors import STATUS_OF, public_text, wire_code
from deltahub.server.hub import CallerDep, Hub
from deltahub.server.web.rendering import render


async def viewer_of(caller: CallerDep) -> Caller:
    """Return who is logged in. Raises Unauthorized, which sends readers to the login page."""
    if caller is None:
        raise Unauthorized("log in to see your settings")
    return caller


ViewerDep = Annotated[Caller, Depends(viewer_of)]


def page(
    request: Request,
    hub: Hub,
    viewer: Caller,
    template: str,
    error: RegistryError | None = None,
    **shown: Any,
) -> Response:
    """Make a page, perhaps with what was wrong with its form."""
    status = 200 if error is None else STATUS_OF[wire_code(error.code)]
    problem = None if error is None else public_text(error)
    shown.setdefault("done", None)
    return render(
        request, hub, viewer, f"settings/{template}.html", status, problem=problem, **shown
    )


def back_to(path: str) -> Response:
    """Answer a form that did what was asked: the browser loads the page again."""
    return RedirectResponse(path, 303)

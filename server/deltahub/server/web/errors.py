"""Errors as pages: what was wrong, and what to do next."""

from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from deltahub.codecs.errors import CodecError
from deltahub.registry.errors import RegistryError
from deltahub.registry.storage.base import StoreError
from deltahub.server import errors
from deltahub.server.connections.renamed import renamed
from deltahub.server.connections.request_ids import current_id
from deltahub.server.hub import Hub
from deltahub.server.streaming.bodies import BodyCut, BodyLimit
from deltahub.server.web.rendering import own_path, render

_TITLES: Final = {
    400: "The request was cut off",
    401: "Log in to go on",
    403: "You may not do that",
    404: "Nothing is here",
    405: "Nothing is here",
    409: "That does not fit what is there",
    413: "That is too much",
    422: "Something in that is not right",
    503: "The hub is busy",
    507: "The hub is full",
}
_CODED: Final = (RegistryError, CodecError, StoreError, errors.LengthRequired, BodyLimit, BodyCut)
_NOTHING: Final = "There is no such page, or you may not see it."


def install(app: FastAPI) -> None:
    """Register handlers, so that `app` answers every error with a page."""
    for family in _CODED:
        app.add_exception_handler(family, _coded)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def error_page(request: Request, status: int, sentence: str) -> Response:
    """Make the page, or for a part of a page the notice that is shown at its top."""
    hub: Hub = request.app.state.hub
    viewer = getattr(request.state, "caller", None)
    title = _TITLES.get(status, "The hub made a mistake")
    shown: dict[str, Any] = {
        "title": title, "sentence": sentence, "code": status,
        "request_id": current_id() if status >= 500 else None,
    }  # fmt: skip
    if request.headers.get("hx-request"):
        headers = {"HX-Retarget": "#notices", "HX-Reswap": "innerHTML", "HX-Reselect": ".notice"}
        return render(request, hub, viewer, "notice.html", status, headers, **shown)
    return render(request, hub, viewer, "error.html", status, **shown)


def _coded(request: Request, error: Exception) -> Response:
    moved = renamed(request, error)
    if moved is not None:
        return moved
    code = errors.wire_code(getattr(error, "code", "internal_error"))
    if code not in errors.STATUS_OF:
        return _unexpected(request, error)
    errors.log_failure(request, code, error)
    if code == "invalid_name" and request.method == "GET" and request.path_params.get("namespace"):
        # Nothing can have the name in the address.
        return error_page(request, 404, _NOTHING)
    status = errors.STATUS_OF[code]
    viewer = getattr(request.state, "caller", None)
    if status == 401 and request.method == "GET" and viewer is None:
        here = own_path(request) + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/-/login?next={quote(here, safe='')}", 303)
    return error_page(request, status, errors.public_text(error, request))


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sentence = "; ".join(map(errors.sentence_of, error.errors()[:5]))
    return error_page(request, 422, sentence)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_page(request, error.status_code, _NOTHING)


def _unexpected(request: Request, error: Exception) -> Response:
    errors.log_mistake(request, error)
    return error_page(request, 500, "It is in the hub's log. Try again, or ask its operator.")

"""Error answers in the form of the Hugging Face API: a header with the kind, and a sentence."""

import logging
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from deltahub.codecs.errors import CodecError
from deltahub.registry.access.caller import NO_TOKEN
from deltahub.registry.errors import RegistryError, RepositoryMoved, RepositoryNotFound
from deltahub.registry.storage.base import StoreError
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.connections.redaction import redacted
from deltahub.server.connections.renamed import renamed
from deltahub.server.errors import (
    STATUS_OF,
    LengthRequired,
    header_text,
    log_failure,
    mistake,
    public_text,
    sentence_of,
    wire_code,
)
from deltahub.server.hf.unmatched import without_namespace
from deltahub.server.streaming.bodies import BodyCut, BodyLimit
from deltahub.server.streaming.ranges import UnsatisfiableRange

log = logging.getLogger(__name__)

# Our codes -> the values of X-Error-Code that clients turn into exceptions of their own. For other
# values they show the sentence.
_KINDS: Final = {
    "repository_not_found": "RepoNotFound",
    "revision_not_found": "RevisionNotFound",
    "entry_not_found": "EntryNotFound",
    "not_supported": "NotImplemented",
    # The one kind of refusal whose sentence a download shows at once; after others it speaks of the
    # connection.
    "adapter_quarantined": "GatedRepo",
}
_MAX_SENTENCE: Final = 500
_NO_TOKEN: Final = (
    "this needs a token: `hf auth login` stores yours, or HF_TOKEN holds it; the hub's operator"
    " makes one with `deltahub user token create`"
)


class NotSupported(Exception):
    """A part of the Hugging Face API that this hub lacks; the text says what to do instead."""

    code = "not_supported"


class BadQuery(Exception):
    """A query parameter with a wrong name or value; the text says which ones are right."""


def refusal(
    code: str, message: str, *, status: int | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Build the answer for an error. code: as in STATUS_OF. status: None for that of the code."""
    sentence = " ".join(message.split())[:_MAX_SENTENCE]
    status = STATUS_OF.get(code, 500) if status is None else status
    all_headers = {
        "X-Error-Code": _KINDS.get(code, code),
        "X-Error-Message": header_text(sentence),
        **(headers or {}),
    }
    if status == 401:
        all_headers.setdefault("WWW-Authenticate", 'Bearer realm="DeltaHub"')
    if status == 503:
        all_headers["Retry-After"] = "1"
    return JSONResponse({"error": sentence}, status_code=status, headers=all_headers)


def install(app: FastAPI) -> None:
    """Register handlers, so that `app` answers errors in the form of the Hugging Face API."""
    for family in (
        RegistryError, CodecError, StoreError, LengthRequired, BodyLimit, BodyCut, NotSupported,
        BadQuery,
    ):  # fmt: skip
        app.add_exception_handler(family, _coded)
    app.add_exception_handler(UnsatisfiableRange, _unsatisfiable)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def _coded(request: Request, error: Exception) -> Response:
    if isinstance(error, BadQuery):
        return refusal("invalid_request", str(error), status=400)
    moved = renamed(request, error)
    if moved is not None:
        moved.headers.update(_close_if_unread(request))
        return moved
    code = wire_code(getattr(error, "code", "internal_error"))
    if code == "not_supported":
        return refusal(code, str(error), status=501, headers=_close_if_unread(request))
    if code not in STATUS_OF:
        return _unexpected(request, error)
    log_failure(request, code, error)
    headers = _close_if_unread(request) | _known_commit(request)
    if code == "unauthorized" and "/info/lfs/" in request.scope["path"]:
        # git-lfs sends a token as a password, and asks for one only then.
        headers["WWW-Authenticate"] = 'Basic realm="DeltaHub"'
    return refusal(code, _sentence(request, error), status=_status(request, code), headers=headers)


def _status(request: Request, code: str) -> int:
    # hf_xet 1.8.0 repeats a request for minutes after each 5xx, and at once shows a 413.
    if code == "storage_full" and request.scope["path"].startswith("/cas/"):
        return 413
    return STATUS_OF[code]


def _sentence(request: Request, error: Exception) -> str:
    """The error's text, with advice for users of Hugging Face clients where there is some."""
    if str(error) == NO_TOKEN:
        return _NO_TOKEN
    if isinstance(error, RepositoryNotFound) and not isinstance(error, RepositoryMoved):
        # /api/models/gpt2/refs names the model gpt2/refs, but the client meant the model gpt2.
        meant = without_namespace(request.scope["path"])
        return str(error) if meant is None else f"{error}; {meant}"
    return public_text(error, request)


def _known_commit(request: Request) -> dict[str, str]:
    # With this header a client caches that the revision has no such file.
    commit = getattr(request.state, "commit", None)
    return {} if commit is None else {"X-Repo-Commit": commit}


def _close_if_unread(request: Request) -> dict[str, str]:
    unread = getattr(request.state, "has_unread_body", False)
    return {"Connection": "close"} if unread else {}


def _unsatisfiable(_request: Request, error: Exception) -> Response:
    assert isinstance(error, UnsatisfiableRange)
    return refusal(error.code, str(error), headers={"Content-Range": f"bytes */{error.size}"})


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return refusal("invalid_request", "; ".join(map(sentence_of, error.errors()[:5])))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    called = f"{request.method} {redacted(unescaped(path))}"
    if error.status_code in (404, 405):
        meant = without_namespace(path)
        if meant is not None:
            return refusal("repository_not_found", meant)
    if error.status_code == 404:
        return refusal("not_found", f"there is nothing at {called}")
    if error.status_code == 405:
        methods = ", ".join(sorted(_methods(request)))
        return refusal(
            "method_not_allowed",
            f"there is no {called}, only {methods}",
            headers={"Allow": methods},
        )
    if error.status_code == 400:
        return refusal("invalid_request", f"{called} takes JSON, and the body is none")
    return _unexpected(request, error)


def _methods(request: Request) -> set[str]:
    """The methods of all routes of this path; one route knows only its own."""
    methods: set[str] = set()
    for route in request.app.state.routes:
        if route.matches(request.scope)[0] != Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return methods


def _unexpected(request: Request, error: Exception) -> Response:
    log.error("path=%s broke", redacted(request.url.path), exc_info=error)
    return refusal("internal_error", mistake())

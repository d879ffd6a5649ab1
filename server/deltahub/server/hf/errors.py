"""Our errors as Hugging Face clients read them: a header that names the kind, and a sentence."""

import logging
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deltahub.codecs.errors import CodecError
from deltahub.registry.errors import RegistryError
from deltahub.registry.store.base import StoreError
from deltahub.server.errors import STATUS_OF, LengthRequired, wire_code
from deltahub.server.ranges import UnsatisfiableRange
from deltahub.server.streaming import BodyCut, BodyLimit

log = logging.getLogger(__name__)

# The words that clients turn into exceptions of their own; others are shown with their sentence.
_KINDS: Final = {
    "repository_not_found": "RepoNotFound",
    "revision_not_found": "RevisionNotFound",
    "entry_not_found": "EntryNotFound",
    "not_supported": "NotImplemented",
}
_MAX_SENTENCE: Final = 500


class NotSupported(Exception):
    """A part of that API that this hub does not have; says what to do instead."""

    code = "not_supported"


def refusal(
    code: str, message: str, *, status: int | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """The answer for an error. code: as in STATUS_OF; its status there unless one is given."""
    sentence = " ".join(message.split())[:_MAX_SENTENCE]
    status = STATUS_OF.get(code, 500) if status is None else status
    all_headers = {
        "X-Error-Code": _KINDS.get(code, code),
        # Headers are Latin-1; names may be anything.
        "X-Error-Message": sentence.encode("ascii", "backslashreplace").decode(),
        **(headers or {}),
    }
    if status == 401:
        all_headers["WWW-Authenticate"] = 'Bearer realm="DeltaHub"'
    if status == 503:
        all_headers["Retry-After"] = "1"
    return JSONResponse({"error": sentence}, status_code=status, headers=all_headers)


def install(app: FastAPI) -> None:
    """Makes every error of `app` leave in the form that Hugging Face clients read."""
    for family in (
        RegistryError, CodecError, StoreError, LengthRequired, BodyLimit, BodyCut, NotSupported
    ):  # fmt: skip
        app.add_exception_handler(family, _coded)
    app.add_exception_handler(UnsatisfiableRange, _unsatisfiable)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def _coded(request: Request, error: Exception) -> Response:
    code = wire_code(getattr(error, "code", "internal_error"))
    if code == "not_supported":
        return refusal(code, str(error), status=501, headers=_close_if_unread(request))
    if code not in STATUS_OF:
        return _unexpected(request, error)
    if STATUS_OF[code] >= 500:
        log.error("path=%s code=%s: %s", request.url.path, code, error)
    return refusal(code, str(error), headers=_close_if_unread(request) | _known_commit(request))


def _known_commit(request: Request) -> dict[str, str]:
    # With it a client remembers that this revision has no such file.
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
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}"
        for problem in error.errors()[:5]
    ]
    return refusal("invalid_request", "; ".join(problems))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return refusal("not_found", f"there is nothing at {request.method} {request.url.path}")
    if error.status_code == 405:
        return refusal("method_not_allowed", f"{request.method} does not work here")
    if error.status_code == 400:
        return refusal("invalid_request", "the body is not what this path takes")
    return _unexpected(request, error)


def _unexpected(request: Request, error: Exception) -> Response:
    log.error("path=%s broke", request.url.path, exc_info=error)
    return refusal("internal_error", "the hub made a mistake; its log has the details")

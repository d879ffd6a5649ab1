"""The HTTP status of every error code, and handlers that answer errors with our JSON envelope."""

import logging
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deltahub.codecs.errors import CodecError
from deltahub.registry.downloads.plan import EncodedAgain
from deltahub.registry.errors import DatabaseDamaged, DataLost, RegistryError
from deltahub.registry.names import quoted
from deltahub.registry.storage.base import (
    ObjectNotFound,
    ShortObject,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from deltahub.server.connections.redaction import redacted
from deltahub.server.connections.renamed import renamed
from deltahub.server.connections.request_ids import current_id
from deltahub.server.streaming.bodies import BodyCut, BodyLimit
from deltahub.server.streaming.ranges import UnsatisfiableRange

log = logging.getLogger(__name__)

# Files that one text names.
_MOST_PATHS = 3
# Characters of a sentence in a header.
_MAX_HEADER_TEXT = 500
_AT_WILL = frozenset({"busy", "storage_full"})
# Code -> (when it was logged last, how many were left out since)
_logged: dict[str, tuple[float, int]] = {}
_logging = threading.Lock()

STATUS_OF: Mapping[str, int] = {
    # registry
    "registry_error": 500,
    "not_found": 404,
    "repository_not_found": 404,
    "revision_not_found": 404,
    "entry_not_found": 404,
    "upload_not_found": 404,
    "tensor_not_found": 404,
    "job_not_found": 404,
    "comparison_not_found": 404,
    "upgrade_not_found": 404,
    "unauthorized": 401,
    "forbidden": 403,
    "conflict": 409,
    "repository_exists": 409,
    "name_taken": 409,
    "ref_moved": 412,
    "not_ready": 409,
    "adapter_quarantined": 403,
    "upload_offset_mismatch": 409,
    "delta_cycle": 409,
    "invalid_request": 422,
    "invalid_name": 422,
    "invalid_path": 422,
    "hash_mismatch": 422,
    "size_mismatch": 422,
    "invalid_frame": 422,
    "limit_exceeded": 413,
    "quota_exceeded": 413,
    "storage_full": 507,
    "unavailable": 503,
    "busy": 503,
    "cancelled": 499,
    "schema_too_new": 500,
    "data_lost": 500,
    "job_failed": 500,
    # methods: in the errors of jobs
    "method_error": 422,
    "cannot_merge": 422,
    "cannot_adapt": 422,
    "cannot_export": 422,
    "cannot_transfer": 422,
    "bad_adapter": 422,
    # codecs: data that a client sent does not decode
    "codec_error": 422,
    "invalid_input": 422,
    "corrupt_frame": 422,
    "unsupported_version": 422,
    "unknown_codec": 422,
    "wrong_base": 422,
    "corrupt_pack": 422,
    "corrupt_recipe": 422,
    "invalid_safetensors": 422,
    "too_large": 413,
    # HTTP itself
    "body_cut": 400,
    "length_required": 411,
    "request_timeout": 408,
    "method_not_allowed": 405,
    "wrong_host": 421,
    "range_not_satisfiable": 416,
    "internal_error": 500,
}

# Error codes of the storage layer -> the codes that the API documents.
_WIRE_CODE_OF: Mapping[str, str] = {
    "store_full": "storage_full",
    "store_unavailable": "unavailable",
    "spool_busy": "unavailable",
    "parts_lost": "unavailable",
    "object_not_found": "data_lost",
    "short_object": "data_lost",
    "store_error": "internal_error",
    "wrong_store": "unavailable",
    "half_restored": "unavailable",
    "move_changed": "unavailable",
    "invalid_key": "internal_error",
}

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


class LengthRequired(Exception):
    """An upload without a Content-Length header."""

    code = "length_required"


def wire_code(code: str) -> str:
    """Return the code that clients see for an internal error code."""
    return _WIRE_CODE_OF.get(code, code)


def envelope(code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Build the answer for an error: the status of its code, code and message in the body."""
    status = STATUS_OF.get(code, 500)
    all_headers = dict(headers or {})
    if status == 401:
        all_headers["WWW-Authenticate"] = 'Bearer realm="DeltaHub"'
    if status == 503:
        all_headers["Retry-After"] = "1"
    error = {"code": code, "message": message}
    request_id = current_id()
    if status >= 500 and request_id is not None:
        error["request_id"] = request_id
    return JSONResponse({"error": error}, status_code=status, headers=all_headers)


def install(app: FastAPI) -> None:
    """Register handlers, so that `app` answers every error with our envelope."""
    for family in (RegistryError, CodecError, StoreError, LengthRequired, BodyLimit, BodyCut):
        app.add_exception_handler(family, _coded)
    app.add_exception_handler(UnsatisfiableRange, _unsatisfiable)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def _coded(request: Request, error: Exception) -> Response:
    moved = renamed(request, error)
    if moved is not None:
        moved.headers.update(_close_if_unread(request))
        return moved
    code = wire_code(getattr(error, "code", "internal_error"))
    if code not in STATUS_OF:
        return _unexpected(request, error)
    log_failure(request, code, error)
    return _answer(request, code, public_text(error, request), _close_if_unread(request))


def _answer(
    request: Request, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    answer = envelope(code, message, headers)
    if request.method == "HEAD":
        # Its answer has no body, and clients show the sentence.
        answer.headers["X-Error-Code"] = code
        answer.headers["X-Error-Message"] = header_text(message)
    return answer


def header_text(sentence: str) -> str:
    """Return a sentence as a header's value: one line in ASCII, of bounded length.

    Headers are Latin-1 without control characters, but names in a sentence may hold any.
    """
    line = " ".join(sentence.split())[:_MAX_HEADER_TEXT]
    return "".join(
        char if char.isascii() and char.isprintable() else _escaped(char) for char in line
    )


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def note_file(request: Request, name: str, *paths: str) -> None:
    """Remember which file of a repository is read, for the text of an error. The caller of the
    request must be allowed to read it.
    """
    shown = ", ".join(quoted(path) for path in paths[:_MOST_PATHS])
    more = f" and {len(paths) - _MOST_PATHS} more files" if len(paths) > _MOST_PATHS else ""
    request.state.read_file = f"{shown}{more} of {name}"


def public_text(error: BaseException, request: Request | None = None) -> str:
    """The error's text, without the operator's business: the address of a bucket, and which stored
    bytes are damaged. Users learn which file that is, if note_file() was told.
    """
    file = None if request is None else getattr(request.state, "read_file", None)
    if file is not None and _is_lost_file(error):
        return (
            f"{file}: stored bytes are damaged or gone; push the file again to bring it back. If"
            " that does not help, ask the hub's operator to run `deltahub scrub --all` first"
        )
    cause = error if isinstance(error, StoreError) else error.__cause__
    if isinstance(cause, StoreFull | StoreUnavailable) and cause.place != "disk":
        state = "is full" if isinstance(cause, StoreFull) else "does not answer"
        return f"the hub's {cause.place} {state}; try again later, or ask its operator"
    return str(error)


def _is_lost_file(error: BaseException) -> bool:
    """Whether the error says that stored bytes of a file are lost, which a push brings back."""
    if isinstance(error, DatabaseDamaged | EncodedAgain):
        return False
    return isinstance(error, DataLost | ObjectNotFound | ShortObject)


def log_failure(request: Request, code: str, error: Exception) -> None:
    """Log an error of the hub. Of those that callers can cause at will, one a second is logged."""
    if STATUS_OF[code] < 500:
        return
    left_out = 0
    if code in _AT_WILL:
        with _logging:
            at, left_out = _logged.get(code, (0.0, 0))
            if time.monotonic() < at + 1:
                _logged[code] = (at, left_out + 1)
                return
            _logged[code] = (time.monotonic(), 0)
    more = f" ({left_out} more since the last line)" if left_out else ""
    log.error("path=%s code=%s: %s%s", redacted(request.url.path), code, error, more)


def _close_if_unread(request: Request) -> dict[str, str]:
    # With keep-alive, the server would read the rest of the refused body, which may be gigabytes.
    if getattr(request.state, "has_unread_body", False):
        return {"Connection": "close"}
    return {}


def _unsatisfiable(request: Request, error: Exception) -> Response:
    assert isinstance(error, UnsatisfiableRange)
    return _answer(request, error.code, str(error), {"Content-Range": f"bytes */{error.size}"})


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(request, "invalid_request", "; ".join(map(sentence_of, error.errors()[:5])))


def sentence_of(problem: Mapping[str, Any]) -> str:
    """Return one sentence for a validation problem of FastAPI: the place and the reason."""
    if problem["type"] == "json_invalid":
        reason = problem["ctx"]["error"]
        return f"the body is not JSON: {reason} at character {problem['loc'][1]}"
    place = ".".join(str(part) for part in problem["loc"][1:] or problem["loc"])
    return f"{place[:100]}: {problem['msg'][:300]}"


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code)
    called = f"{request.method} {redacted(request.url.path)[:200]}"
    if code == "not_found":
        return _answer(request, code, f"there is nothing at {called}")
    if code == "method_not_allowed":
        return _answer(
            request, code, f"there is no {called}: that path takes other methods", error.headers
        )
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return _answer(request, "invalid_request", "the body is not the JSON that this path takes")
    return _unexpected(request, error)


def _unexpected(request: Request, error: Exception) -> Response:
    log_mistake(request, error)
    return _answer(request, "internal_error", mistake())


def log_mistake(request: Request, error: Exception) -> None:
    """Log a fault of the hub."""
    log.error("path=%s broke", redacted(request.url.path), exc_info=error)


def mistake() -> str:
    """Return the sentence for a fault of the hub."""
    request_id = current_id()
    under = "" if request_id is None else f" under request={request_id}"
    return f"the hub made a mistake; its log has the details{under}"

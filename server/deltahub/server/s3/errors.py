"""Error answers in the form of S3: XML with a code that clients know, and a sentence."""

import logging
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from deltahub.codecs.errors import CodecError
from deltahub.registry.catalog.objects.keys import BucketNotFound
from deltahub.registry.errors import RegistryError, TokenExpired
from deltahub.registry.storage.base import StoreError
from deltahub.server.connections.request_ids import current_id
from deltahub.server.errors import (
    STATUS_OF,
    header_text,
    log_failure,
    log_mistake,
    mistake,
    public_text,
    wire_code,
)
from deltahub.server.s3 import refusals
from deltahub.server.s3.refusals import S3Refusal
from deltahub.server.s3.xml import document
from deltahub.server.streaming.bodies import BodyCut, BodyLimit
from deltahub.server.streaming.ranges import UnsatisfiableRange

log = logging.getLogger(__name__)

# Our codes -> S3's. Other codes are faults of the hub.
_CODES: Final[Mapping[str, str]] = {
    "not_found": "NoSuchKey",
    "repository_not_found": "NoSuchKey",
    "revision_not_found": "NoSuchKey",
    "entry_not_found": "NoSuchKey",
    "invalid_name": "NoSuchKey",
    "unauthorized": "AccessDenied",
    "forbidden": "AccessDenied",
    "adapter_quarantined": "AccessDenied",
    "invalid_request": "InvalidArgument",
    "limit_exceeded": "InvalidRequest",
    "body_cut": "RequestTimeout",
    "busy": "SlowDown",
    "unavailable": "ServiceUnavailable",
    "cancelled": "RequestTimeout",
}


def refusal(
    code: str, sentence: str, resource: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Build the answer for an error. code: one of refusals.STATUS_OF. resource: the path."""
    answer = document(
        "Error",
        [
            ("Code", code),
            ("Message", sentence),
            ("Resource", resource),
            ("RequestId", current_id() or ""),
        ],
        status=refusals.STATUS_OF[code],
    )
    answer.headers.update(headers or {})
    # The answer to HEAD has no body.
    answer.headers["X-Error-Code"] = code
    answer.headers["X-Error-Message"] = header_text(sentence)
    if answer.status_code == 503:
        answer.headers["Retry-After"] = "1"
    return answer


def install(app: FastAPI) -> None:
    """Register handlers, so that `app` answers errors in the form of S3."""
    for family in (
        S3Refusal, RegistryError, CodecError, StoreError, BodyLimit, BodyCut, UnsatisfiableRange,
        HTTPException, Exception,
    ):  # fmt: skip
        app.add_exception_handler(family, answer_to)


def answer_to(request: Request, error: Exception) -> Response:
    """Return the answer for an error."""
    path = request.scope["path"]
    headers = {"Connection": "close"} if _has_unread_body(request) else {}
    if isinstance(error, S3Refusal):
        return refusal(error.code, str(error), path, headers | error.headers)
    if isinstance(error, UnsatisfiableRange):
        headers["Content-Range"] = f"bytes */{error.size}"
        return refusal("InvalidRange", str(error), path, headers)
    if isinstance(error, BucketNotFound):
        return refusal("NoSuchBucket", str(error), path, headers)
    if isinstance(error, TokenExpired):
        return refusal("ExpiredToken", str(error), path, headers)
    if isinstance(error, HTTPException) and error.status_code == 404:
        return refusal("NoSuchKey", "there is no bucket in this address", path, headers)
    if isinstance(error, HTTPException) and error.status_code == 405:
        return refusal("MethodNotAllowed", f"S3 has no {request.method} here", path, headers)
    code = wire_code(getattr(error, "code", "internal_error"))
    if code in _CODES:
        log_failure(request, code, error)
        return refusal(_CODES[code], public_text(error, request), path, headers)
    if code in STATUS_OF and code != "internal_error":
        log_failure(request, code, error)
        return refusal("InternalError", public_text(error, request), path, headers)
    log_mistake(request, error)
    return refusal("InternalError", mistake(), path, headers)


def _has_unread_body(request: Request) -> bool:
    # With keep-alive, the server would read the rest of the refused body, which may be gigabytes.
    return bool(getattr(request.state, "has_unread_body", False))

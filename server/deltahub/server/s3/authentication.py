"""Finds the caller of an S3 request by its signature, before anything else looks at it."""

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote_to_bytes

import anyio.to_thread
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from deltahub.registry.access.caller import ANONYMOUS, Caller
from deltahub.registry.access.keys.s3_keys import find_key_holder
from deltahub.server.hub import Hub
from deltahub.server.s3 import signature
from deltahub.server.s3.errors import answer_to
from deltahub.server.s3.refusals import S3Refusal
from deltahub.server.s3.signature import EMPTY_SHA256, UNSIGNED, Signed, signed_by

_READING: Final = ("GET", "HEAD")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")


class Authenticated:
    """Middleware: decodes the path of a request, and notes its caller in the state of the scope.

    An unsigned request has no caller. Cookies do not count: a browser sends them to every port.
    """

    def __init__(self, app: ASGIApp, hub: Hub) -> None:
        self._app = app
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        scope.setdefault("state", {})
        try:
            path = _decoded(scope["raw_path"])
            request.state.caller = await self._caller(request)
        except Exception as error:
            await answer_to(request, error)(scope, receive, send)
            return
        await self._app({**scope, "path": path}, receive, send)

    async def _caller(self, request: Request) -> Caller | None:
        has_body = (
            request.headers.get("content-length", "0") != "0"
            or "transfer-encoding" in request.headers
        )
        request.state.has_unread_body = has_body
        if has_body and request.method in _READING:
            raise S3Refusal("InvalidRequest", f"a {request.method} of S3 has no body")
        scope = request.scope
        sent = signature.Request(
            request.method, scope["raw_path"], scope["query_string"], tuple(scope["headers"])
        )
        signed = signed_by(sent, dict(request.query_params))
        if signed is None:
            return ANONYMOUS
        if request.method in _READING and signed.payload not in (UNSIGNED, EMPTY_SHA256):
            raise S3Refusal(
                "XAmzContentSHA256Mismatch",
                f"x-amz-content-sha256 of a request without a body is {UNSIGNED} or the hash of no"
                " bytes",
            )
        # Only signed requests use a thread: the switch costs more than reading the headers.
        return await anyio.to_thread.run_sync(self._signer, signed, sent)

    def _signer(self, signed: Signed, sent: signature.Request) -> Caller:
        holder = find_key_holder(self._hub.registry, signed.access_key_id)
        if holder is None:
            raise S3Refusal(
                "InvalidAccessKeyId",
                "the hub does not know this access key id: its token was revoked, or it is of"
                " another hub; `deltahub token s3` prints the keys of a token",
            )
        keys = holder.keys(self._hub.signer.key)
        if not signed.is_by(keys.secret_access_key, sent):
            raise S3Refusal(
                "SignatureDoesNotMatch",
                "the signature is not that of this request by the secret access key of this access"
                " key id: the secret is wrong, or a proxy changed the host or the path",
            )
        signed.check_time(datetime.now(UTC))
        return holder.caller()


def _decoded(raw_path: bytes) -> str:
    try:
        path = unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError as error:
        raise S3Refusal("InvalidURI", "the path is not UTF-8") from error
    if _CONTROL.search(path):
        # Routes would not match them, and no path of the hub has one.
        raise S3Refusal("NoSuchKey", "no key has a control character")
    bucket, _, key = path[1:].partition("/")
    return f"/{bucket}/{key}" if key else f"/{bucket}"

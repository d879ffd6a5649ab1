"""A cap on JSON bodies, before anything parses them."""

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltahub.server.errors import envelope
from deltahub.server.hf import errors as hf_errors
from deltahub.server.hf.door import is_hugging_face
from deltahub.server.streaming import BodyCut, BodyLimit, read_body


class JsonBodyLimit:
    """Reads small bodies whole, and refuses those that are too large or come too slowly.

    Streamed routes set their own limits.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, idle_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._idle_s = idle_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"]) if scope["type"] == "http" else {}
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        if not has_body or is_streamed(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            # The HTTP parser has checked that the number is one.
            if int(headers.get(b"content-length", b"0")) > self._max_bytes:
                raise BodyLimit(f"the body is larger than the limit of {self._max_bytes} bytes")
            body = await read_body(Request(scope, receive), self._max_bytes, self._idle_s)
        except (BodyLimit, BodyCut) as error:
            refuse = hf_errors.refusal if is_hugging_face(scope["path"]) else envelope
            refused = refuse(error.code, str(error), headers={"Connection": "close"})
            await refused(scope, receive, send)
        else:
            await self._app(scope, _replay(body, receive), send)


def is_streamed(method: str, path: str) -> bool:
    """Whether the route reads its body itself: uploads, recipes, and commits with files in them."""
    if path.startswith("/v1/"):
        return (method == "PUT" and path.startswith("/v1/uploads/")) or path.endswith("/recipes")
    return path.startswith(("/lfs/", "/cas/")) or (
        path.startswith("/api/models/") and "/commit/" in path
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed

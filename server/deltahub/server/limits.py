"""A cap on JSON bodies, before anything parses them."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltahub.server.errors import envelope


class JsonBodyLimit:
    """Reads small bodies whole and refuses larger ones; streamed routes set their own limits."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"]) if scope["type"] == "http" else {}
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        if not has_body or is_streamed(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        # The HTTP parser has checked that the number is one.
        n_bytes = int(headers.get(b"content-length", b"0"))
        body = bytearray()
        while n_bytes <= self._max_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            n_bytes = max(n_bytes, len(body))
            if not message.get("more_body", False):
                await self._app(scope, _replay(bytes(body), receive), send)
                return
        refusal = envelope(
            "limit_exceeded",
            f"the body is larger than the limit of {self._max_bytes} bytes",
            {"Connection": "close"},
        )
        await refusal(scope, receive, send)


def is_streamed(method: str, path: str) -> bool:
    """Whether the route reads its body itself: uploads and recipes."""
    return (method == "PUT" and path.startswith("/v1/uploads/")) or path.endswith("/recipes")


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed

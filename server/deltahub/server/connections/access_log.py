"""The log of requests, one line each, without query strings, tokens and signed links."""

import logging
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltahub.server.connections.redaction import redacted

log = logging.getLogger(__name__)


class AccessLog:
    """Middleware that logs each request when its answer begins."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def logged(message: Message) -> None:
            if message["type"] == "http.response.start":
                host, port = scope.get("client") or ("", 0)
                log.info(
                    '%s:%d - "%s %s HTTP/%s" %d',
                    host, port, scope["method"], redacted(quote(scope["path"])),
                    scope["http_version"], message["status"],
                )  # fmt: skip
            await send(message)

        await self._app(scope, receive, logged)

"""Tells the registry when the client of a request has disconnected."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from deltahub.registry import cancellation

# Where the HTTP protocol puts the Cancellation of a connection, in the state of each scope.
STATE_KEY: Final = "cancellation"


class Disconnects:
    """Middleware: cancellation.check() asks whether the connection of the request still exists.

    This also holds in the threads of handlers, because they get a copy of the request's context.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).get(STATE_KEY)
        if connection is not None:
            cancellation.use(connection)
        await self._app(scope, receive, send)

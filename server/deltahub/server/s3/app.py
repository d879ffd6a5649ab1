"""The application that S3 clients use."""

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltahub.server.connections.request_ids import current_id
from deltahub.server.hub import Hub
from deltahub.server.s3 import buckets, errors, objects
from deltahub.server.s3.authentication import Authenticated
from deltahub.server.streaming.disconnects import Disconnects


def create_s3_app(hub: Hub) -> ASGIApp:
    """Build the application for a hub. It has no OpenAPI document: AWS defines this API."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.hub = hub
    errors.install(app)
    for module in (buckets, objects):
        app.include_router(module.router)
    return _Named(Disconnects(Authenticated(app, hub)))


class _Named:
    """Middleware that gives answers the header by which S3 clients name a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (b"x-amz-request-id", (current_id() or "").encode("ascii"))
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self._app(scope, receive, named)

"""Which requests are for the S3 door: those to its own port, and those for its own host."""

from starlette.types import ASGIApp, Receive, Scope, Send

from deltahub.server.connections.exchanges import DOOR_KEY
from deltahub.server.public_url import S3Door


class S3Dispatch:
    """Middleware: sends requests for the S3 door to `s3`, others to `app`."""

    def __init__(self, app: ASGIApp, s3: ASGIApp, door: S3Door) -> None:
        self._app = app
        self._s3 = s3
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._door.has(scope):
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})[DOOR_KEY] = "s3"
        await self._s3({**scope, "raw_path": scope.get("raw_path") or b"/"}, receive, send)

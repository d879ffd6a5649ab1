"""The application of all pages."""

from typing import Final

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from deltahub.server.hub import Hub
from deltahub.server.web import assets, errors, forms, home
from deltahub.server.web.account import login
from deltahub.server.web.dispatch import ELSEWHERE
from deltahub.server.web.headers import PageHeaders
from deltahub.server.web.lists import namespace
from deltahub.server.web.model import (
    blob,
    commits,
    files,
    lineage,
    overview,
    refs,
    settings,
    tensors,
    use,
)

# In order: the first route that matches answers. Models come last, as their names match most.
_MODULES: Final = (
    home, login,
    namespace, overview, files, blob, commits, refs, lineage, use, tensors, settings,
)  # fmt: skip


def create_web_app(hub: Hub) -> FastAPI:
    """Build the application for a hub. It has no OpenAPI document: its answers are for people."""
    app = FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, dependencies=[Depends(forms.checked)]
    )
    app.state.hub = hub
    errors.install(app)
    app.add_middleware(PageHeaders)
    app.add_api_route("/-/assets/{name}", assets.get_asset, methods=["GET", "HEAD"])
    for old, new in ELSEWHERE.items():
        app.add_api_route(old, _redirect(new), methods=["GET", "HEAD"])
    for module in _MODULES:
        app.include_router(module.router)
    return app


def _redirect(path: str):  # type: ignore[no-untyped-def]
    async def redirect(request: Request) -> Response:
        return RedirectResponse(path, 307)

    return redirect

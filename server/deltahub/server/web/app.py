"""The application of all pages."""

from typing import Final

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from deltahub.server.hub import Hub
from deltahub.server.monitoring.metrics import Monitoring
from deltahub.server.web import assets, errors, forms, home
from deltahub.server.web.account import invitation, login, new_model, openid
from deltahub.server.web.account.turns import Logins
from deltahub.server.web.admin import pages as admin
from deltahub.server.web.dispatch import ELSEWHERE
from deltahub.server.web.headers import PageHeaders
from deltahub.server.web.jobs import pages as jobs
from deltahub.server.web.lists import namespace
from deltahub.server.web.model import pages as model
from deltahub.server.web.settings import pages as settings
from deltahub.server.web.upgrades import pages as upgrades

# In order: the first route that matches answers. Models come last, as their names match most.
MODULES: Final = (
    home, login, openid, invitation, new_model,
    *settings.MODULES, *jobs.MODULES, upgrades, *admin.MODULES,
    namespace, *model.MODULES,
)  # fmt: skip


def create_web_app(hub: Hub, monitoring: Monitoring) -> FastAPI:
    """Build the application for a hub. It has no OpenAPI document: its answers are for people."""
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(forms.checked)],
    )
    app.state.hub = hub
    app.state.monitoring = monitoring
    app.state.logins = Logins(hub.settings)
    errors.install(app)
    app.add_middleware(PageHeaders)
    app.add_api_route("/-/assets/{name}", assets.get_asset, methods=["GET", "HEAD"])
    for old, new in ELSEWHERE.items():
        app.add_api_route(old, _redirect(new), methods=["GET", "HEAD"])
    for module in MODULES:
        app.include_router(module.router)
    return app


def _redirect(path: str):  # type: ignore[no-untyped-def]
    async def redirect(request: Request) -> Response:
        return RedirectResponse(path, 307)

    return redirect

"""The ASGI application: routes, error handlers and limits around one open registry."""

from functools import partial

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.responses import Response
from starlette.types import Scope

from deltahub.registry.registry import Registry
from deltahub.server import errors
from deltahub.server.connections.hosts import OwnHosts, own_names
from deltahub.server.connections.inner_paths import TidyPaths
from deltahub.server.cross_origin import open_to, origins_in
from deltahub.server.hf.app import create_hugging_face_app
from deltahub.server.hf.dispatch import HuggingFaceDispatch, is_hugging_face
from deltahub.server.hf.errors import refusal
from deltahub.server.hub import Hub
from deltahub.server.monitoring.metrics import Monitoring
from deltahub.server.public_url import PublicUrl, S3Door
from deltahub.server.routes import (
    files,
    history,
    info,
    jobs,
    models,
    probes,
    rebuilding,
    repositories,
    revisions,
    system,
    tensors,
    uploads,
)
from deltahub.server.routes.access import organizations, own, quotas, users
from deltahub.server.routes.admin import reports
from deltahub.server.routes.results import adapters, comparisons, kits, upgrades
from deltahub.server.routes.runs import steps
from deltahub.server.s3.app import create_s3_app
from deltahub.server.s3.dispatch import S3Dispatch
from deltahub.server.s3.errors import refusal as s3_refusal
from deltahub.server.schemas.base import ErrorOut
from deltahub.server.settings import ServerSettings
from deltahub.server.streaming.disconnects import Disconnects
from deltahub.server.streaming.metering import Traffic
from deltahub.server.web.app import create_web_app
from deltahub.server.web.dispatch import WebDispatch

DESCRIPTION = """
A self-hosted model hub that stores every fine-tune as the lossless difference from its base.

Send a token as `Authorization: Bearer hf_...`; public repositories can be read without one.
Every refusal is `{"error": {"code", "message"}}`. A repository that the caller may not read
answers 404, as if it did not exist.
"""

_ROUTERS = (
    system, quotas, repositories, revisions, steps, history, info, files, rebuilding, uploads,
    tensors, jobs, comparisons, adapters, kits, upgrades, reports, models, own, organizations,
    users,
)  # fmt: skip


def create_app(
    registry: Registry, settings: ServerSettings | None = None, traffic: Traffic | None = None
) -> FastAPI:
    """Build the application on an open registry. The caller closes the registry."""
    # The hub serves the scripts of /docs itself: behind a firewall no browser loads them elsewhere.
    app = FastAPIOffline(
        title="DeltaHub",
        version="1",
        description=DESCRIPTION,
        openapi_url="/openapi.json",
        redoc_url=None,
        static_url="/docs-assets",
        generate_unique_id_function=_operation_id,
    )
    app.state.hub = Hub(registry, settings or ServerSettings(), traffic or Traffic())
    app.state.monitoring = Monitoring(app.state.hub)
    errors.install(app)
    app.add_middleware(HuggingFaceDispatch, hugging_face=create_hugging_face_app(app.state.hub))
    web = create_web_app(app.state.hub, app.state.monitoring)
    app.add_middleware(WebDispatch, web=web)
    app.add_middleware(Disconnects)
    app.add_middleware(TidyPaths)
    public_url = app.state.hub.settings.public_url
    if public_url is not None:
        app.add_middleware(PublicUrl, url=public_url)
    origins = origins_in(app.state.hub.settings.cors_origins)
    if origins:
        app.add_middleware(open_to, origins=origins)
    s3 = app.state.hub.s3_door
    # Outside of all that changes a path or a Host, which S3 clients sign.
    app.add_middleware(S3Dispatch, s3=create_s3_app(app.state.hub), door=s3)
    # Outermost, so that it sees the Host that the client sent.
    names = own_names(app.state.hub.settings.hosts, registry.settings.host, public_url, s3.url)
    app.add_middleware(OwnHosts, names=names, refuse=partial(_wrong_host, s3))
    v1 = APIRouter(prefix="/v1", responses={"default": {"model": ErrorOut}})
    for module in _ROUTERS:
        v1.include_router(module.router)
    app.include_router(v1)
    app.include_router(probes.router)
    return app


def _wrong_host(s3: S3Door, scope: Scope, sentence: str) -> Response:
    if s3.has(scope):
        answer = s3_refusal("AccessDenied", sentence, scope["path"])
    else:
        make = refusal if is_hugging_face(scope["path"]) else errors.envelope
        answer = make("wrong_host", sentence)
    answer.headers["Connection"] = "close"  # the body, if there is one, is not read
    return answer


def _operation_id(route: APIRoute) -> str:
    # Operations are named after their handlers; FastAPI's default adds the path and the method.
    return route.name

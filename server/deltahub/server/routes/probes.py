"""What monitors and load balancers ask, at the paths where they expect it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import JSONResponse

from deltahub.registry.errors import Forbidden, Unauthorized
from deltahub.registry.monitoring.access import has_secret
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import Hub, HubDep, caller_of
from deltahub.server.monitoring.metrics import Monitoring

router = APIRouter(route_class=BoundedRoute, include_in_schema=False)

_NEEDED = (
    "the metrics need DELTAHUB_SERVER_METRICS_TOKEN, or an administrator's token of scope admin"
)


async def monitoring_of(request: Request) -> Monitoring:
    monitoring: Monitoring = request.app.state.monitoring
    return monitoring


MonitoringDep = Annotated[Monitoring, Depends(monitoring_of)]


@router.get("/metrics")
async def get_prometheus_metrics(
    request: Request, hub: HubDep, monitoring: MonitoringDep
) -> Response:
    """Show all metrics in a text format of Prometheus."""
    await _check_may_read(request, hub)
    text, media_type = await monitoring.scrape(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": media_type})


@router.api_route("/healthz", methods=["GET", "HEAD"])
async def get_live() -> Response:
    """Show that the server answers, whatever the state of its database, store and worker."""
    return JSONResponse({"status": "ok"})


@router.api_route("/readyz", methods=["GET", "HEAD"])
async def get_ready(monitoring: MonitoringDep) -> Response:
    """Show whether this server should get requests: 503 and the reason if it should not."""
    obstacles = await monitoring.readiness.obstacles()
    if not obstacles:
        return JSONResponse({"status": "ready", "problems": []})
    problems = [{"part": each.part, "message": each.message} for each in obstacles]
    shown = {"status": "not ready", "problems": problems}
    return JSONResponse(shown, status_code=503, headers={"Retry-After": "1"})


async def _check_may_read(request: Request, hub: Hub) -> None:
    """Raise Unauthorized or Forbidden unless the caller may read the metrics.

    Where a request comes from counts for nothing: behind a proxy on the same machine, the requests
    of all guests come from loopback.
    """
    secret = hub.settings.metrics_token
    if secret is not None and has_secret(request.headers.get("authorization", ""), secret):
        return
    caller = await caller_of(request, hub)
    if caller is None:
        raise Unauthorized(_NEEDED)
    if not caller.is_superuser:
        raise Forbidden(_NEEDED)

"""Adapters: what the hub found out about them, and whether it converts them by itself."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from deltahub.registry.adapters import reports, rules
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.routes.files import RevisionQuery
from deltahub.server.schemas.models import ConversionRuleIn, ConversionRuleOut
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, tags=["adapters"])

_REPOSITORY = "/repositories/{namespace}/{name}"


@router.get(f"{_REPOSITORY}/adapter")
@reads()
def get_adapter_report(
    namespace: str, name: str, hub: HubDep, caller: CallerDep, revision: RevisionQuery = "main"
) -> dict[str, Any]:
    """Tell what an adapter is, whether it fits to its base, and where it can be served.

    `docs/adapters.md` describes the report.
    """
    return reports.read_report(hub.registry, caller, f"{namespace}/{name}", revision)


@router.get(f"{_REPOSITORY}/adapter/rule")
@reads()
def get_repository_conversion(
    namespace: str, name: str, hub: HubDep, caller: CallerDep
) -> ConversionRuleOut:
    """Tell whether a repository's adapters are converted, and whether by a rule of its own."""
    found = rules.read_rule(hub.registry, caller, f"{namespace}/{name}")
    return ConversionRuleOut.model_validate(found)


@router.put(f"{_REPOSITORY}/adapter/rule", status_code=204)
def set_repository_conversion(
    namespace: str, name: str, body: ConversionRuleIn, hub: HubDep, caller: CallerDep
) -> Response:
    """Say whether a repository's adapters are converted: `ask`, `auto`, `off` or `inherit`."""
    rules.set_rule(hub.registry, caller, f"{namespace}/{name}", body.convert)
    return Response(status_code=204)


@router.get("/namespaces/{namespace}/adapter/rule")
@reads()
def get_namespace_conversion(namespace: str, hub: HubDep, caller: CallerDep) -> ConversionRuleOut:
    """Tell the same for the repositories of a namespace that have no rule of their own."""
    return ConversionRuleOut.model_validate(rules.read_rule(hub.registry, caller, namespace))


@router.put("/namespaces/{namespace}/adapter/rule", status_code=204)
def set_namespace_conversion(
    namespace: str, body: ConversionRuleIn, hub: HubDep, caller: CallerDep
) -> Response:
    """Say the same for all repositories of a namespace that have no rule of their own."""
    rules.set_rule(hub.registry, caller, namespace, body.convert)
    return Response(status_code=204)

"""History: what is dropped, taken back, and kept by rule."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import EntryNotFound
from deltahub.registry.retention import prune, rules, take_back
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.schemas.history import (
    DroppedOut,
    DroppedPage,
    PrunedOut,
    PruneIn,
    RuleIn,
    RuleOut,
    TakeBackIn,
)
from deltahub.server.schemas.repositories import RefOut
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, tags=["history"])

_REPOSITORY = "/repositories/{namespace}/{name}"


@router.get(f"{_REPOSITORY}/dropped")
@reads()
def list_dropped(
    namespace: str,
    name: str,
    hub: HubDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=take_back.MAX_PAGE)] = 100,
    cursor: Annotated[int | None, Query(ge=1, description="next_cursor of the page before")] = None,
) -> DroppedPage:
    """List the revisions that were dropped and can be taken back, the latest first."""
    found = take_back.list_dropped(hub.registry, caller, f"{namespace}/{name}", cursor, limit)
    items = [DroppedOut.model_validate(each) for each in found]
    return DroppedPage(items=items, next_cursor=str(found[-1].id) if len(found) == limit else None)


@router.post(f"{_REPOSITORY}/dropped/{{commit}}/take-back", status_code=201)
def take_revision_back(
    namespace: str, name: str, commit: str, body: TakeBackIn, hub: HubDep, caller: CallerDep
) -> RefOut:
    """Make a branch at a dropped revision, which comes back with its dropped ancestors."""
    made = take_back.take_back(hub.registry, caller, f"{namespace}/{name}", commit, body.branch)
    return RefOut.model_validate(made)


@router.post(f"{_REPOSITORY}/prune")
def prune_repository(
    namespace: str, name: str, body: PruneIn, hub: HubDep, caller: CallerDep
) -> PrunedOut:
    """Drop old revisions of all branches; those that stay keep their ids.

    Heads, tagged revisions and what the rule names stay. What is dropped can be taken back for the
    hub's grace, then garbage collection frees its bytes.
    """
    pruned = prune.prune(
        hub.registry, caller, f"{namespace}/{name}", body.rule(), dry_run=body.dry_run
    )
    return PrunedOut.model_validate(pruned)


@router.get(f"{_REPOSITORY}/retention")
@reads()
def get_repository_rule(namespace: str, name: str, hub: HubDep, caller: CallerDep) -> RuleOut:
    """Show the rule of retention that counts for a repository: its own, or its namespace's."""
    return _shown(hub, caller, f"{namespace}/{name}")


@router.put(f"{_REPOSITORY}/retention", status_code=204)
def set_repository_rule(
    namespace: str, name: str, body: RuleIn, hub: HubDep, caller: CallerDep
) -> Response:
    """Set a repository's rule. It is carried out after each commit, and by garbage collection."""
    rules.set_rule(hub.registry, caller, f"{namespace}/{name}", body.rule())
    return Response(status_code=204)


@router.delete(f"{_REPOSITORY}/retention", status_code=204)
def delete_repository_rule(namespace: str, name: str, hub: HubDep, caller: CallerDep) -> Response:
    """Take a repository's rule away: its namespace's counts again, or none."""
    rules.set_rule(hub.registry, caller, f"{namespace}/{name}", None)
    return Response(status_code=204)


@router.get("/namespaces/{namespace}/retention")
@reads()
def get_namespace_rule(namespace: str, hub: HubDep, caller: CallerDep) -> RuleOut:
    """Show the rule of a namespace's repositories that have no own."""
    return _shown(hub, caller, namespace)


@router.put("/namespaces/{namespace}/retention", status_code=204)
def set_namespace_rule(namespace: str, body: RuleIn, hub: HubDep, caller: CallerDep) -> Response:
    """Set the rule of a namespace's repositories that have no own."""
    rules.set_rule(hub.registry, caller, namespace, body.rule())
    return Response(status_code=204)


@router.delete("/namespaces/{namespace}/retention", status_code=204)
def delete_namespace_rule(namespace: str, hub: HubDep, caller: CallerDep) -> Response:
    """Take a namespace's rule away."""
    rules.set_rule(hub.registry, caller, namespace, None)
    return Response(status_code=204)


def _shown(hub: Hub, caller: Caller | None, target: str) -> RuleOut:
    found = rules.get_rule(hub.registry, caller, target)
    if found is None:
        raise EntryNotFound(f"{target} has no rule of retention: all of its history is kept")
    rule, of = found
    return RuleOut(
        keep_last=rule.keep_last,
        keep_every=rule.keep_every,
        older_than_s=rule.older_than_s,
        of=of,
    )

"""Tokens and URLs of the hub's Xet service, and the authentication of its requests."""

import re
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final, Literal, TypeAlias

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse

from deltahub.registry.access.caller import Action, Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.errors import Forbidden, Unauthorized
from deltahub.registry.quotas.limits import check_room
from deltahub.registry.xet.epochs import epoch_of, place_of, repository_at
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.public_url import origin_of
from deltahub.server.signing import caller_of_claims, claims_for

router = APIRouter(route_class=BoundedRoute)

TOKEN_TTL: Final = timedelta(hours=1)
_PURPOSE: Final = "cas"
_COMMIT: Final = re.compile("[0-9a-f]{40}")

Access: TypeAlias = Literal["read", "write"]


@dataclass(frozen=True)
class XetCaller:
    """The caller that a Xet token names. place: the part of the URL that names the repository."""

    caller: Caller | None
    place: str
    repository_id: int


@router.get("/api/models/{namespace}/{name}/xet-{access}-token/{revision}")
def get_xet_token(
    namespace: str,
    name: str,
    access: Access,
    revision: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
) -> JSONResponse:
    """Return the service's URL for a repository, and a token.

    The token is for the whole repository. Reading, a commit that is not there is 404; a branch may
    be new, or of a pull request, which this hub has not.
    """
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}", access)
        if access == "write":
            # Before the client sends xorbs: the hub hears what files they are only afterwards.
            check_room(session, hub.registry.settings, repository.namespace_id)
        elif _COMMIT.fullmatch(revision):
            resolve_revision(session, repository, revision)
        place = place_of(repository)
        epoch = epoch_of(session, hub.registry.settings, repository)
    claims = claims_for(caller, {"place": place, "access": access})
    token = hub.signer.sign(_PURPOSE, claims, TOKEN_TTL.total_seconds())
    expires = int(time.time() + TOKEN_TTL.total_seconds())
    url = f"{origin_of(request)}/cas/e{epoch}/{place}"
    headers = {
        "X-Xet-Cas-Url": url,
        "X-Xet-Access-Token": token,
        "X-Xet-Token-Expiration": str(expires),
        "Cache-Control": "no-store",
    }
    return JSONResponse({"casUrl": url, "exp": expires, "accessToken": token}, headers=headers)


def xet_reader(place: str, request: Request, hub: HubDep) -> XetCaller:
    """Return the caller of a request. Raises Unauthorized; RepositoryNotFound if unreadable."""
    return _authorize(place, request, hub, "read")


def xet_writer(place: str, request: Request, hub: HubDep) -> XetCaller:
    """Return the caller, who may write. Raises as xet_reader does, and Forbidden."""
    return _authorize(place, request, hub, "write")


XetReaderDep = Annotated[XetCaller, Depends(xet_reader)]
XetWriterDep = Annotated[XetCaller, Depends(xet_writer)]


def _authorize(place: str, request: Request, hub: Hub, action: Action) -> XetCaller:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthorized("this needs a token of the hub's Xet service, which the hub gives out")
    claims = hub.signer.verify(_PURPOSE, token.strip())
    if claims["place"] != place:
        raise Unauthorized("this token is for another repository; ask the hub for a new one")
    if action == "write" and claims["access"] != "write":
        raise Forbidden("this token only reads; ask the hub for one that writes")
    with hub.registry.db.read() as session:
        caller = caller_of_claims(session, claims)
        repository = repository_at(session, caller, place, action)
        return XetCaller(caller, place, repository.id)

"""The caller's own tokens and sessions."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from deltahub.registry.access import tokens
from deltahub.registry.access.caller import NO_TOKEN, Caller
from deltahub.registry.access.keys.s3_keys import own_keys
from deltahub.registry.access.login import sessions
from deltahub.registry.errors import Unauthorized
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.public_url import origin_of
from deltahub.server.schemas.access import (
    NewTokenOut,
    S3KeysOut,
    SessionOut,
    SessionsOut,
    TokenIn,
    TokenOut,
    TokensOut,
)

router = APIRouter(route_class=BoundedRoute, tags=["access"])


async def user_of(caller: CallerDep) -> Caller:
    """Return the caller. Raises Unauthorized without a token or session."""
    if caller is None:
        raise Unauthorized(NO_TOKEN)
    return caller


UserDep = Annotated[Caller, Depends(user_of)]


@router.get("/tokens")
def list_tokens(hub: HubDep, caller: UserDep) -> TokensOut:
    """List the caller's tokens, without their secrets."""
    found = tokens.list_tokens(hub.registry, caller.name)
    return TokensOut(items=[TokenOut.model_validate(each) for each in found])


@router.post("/tokens", status_code=201)
def create_token(body: TokenIn, hub: HubDep, caller: UserDep) -> NewTokenOut:
    """Make a token of the caller. It allows no more, and lives no longer, than what makes it."""
    secret = tokens.create_own(hub.registry, caller, body.scope, body.label, body.ttl_s)
    return NewTokenOut(token=secret)


@router.get("/tokens/s3")
def get_s3_keys(request: Request, hub: HubDep, caller: UserDep) -> S3KeysOut:
    """Show the keys with which S3 clients read what the token of this request may read."""
    keys = own_keys(hub.registry, caller, hub.signer.key)
    return S3KeysOut(
        access_key_id=keys.access_key_id,
        secret_access_key=keys.secret_access_key,
        endpoint_url=hub.s3_door.url_for(origin_of(request)),
    )


@router.delete("/tokens/{token_id}", status_code=204)
def delete_token(token_id: int, hub: HubDep, caller: UserDep) -> Response:
    """Make a token of the caller useless at once, with the sessions that it began."""
    tokens.revoke_own(hub.registry, caller, token_id)
    return Response(status_code=204)


@router.get("/sessions")
def list_sessions(hub: HubDep, caller: UserDep) -> SessionsOut:
    """List the browsers in which the caller is logged in."""
    found = sessions.list_sessions(hub.registry, caller.user_id)
    return SessionsOut(items=[SessionOut.model_validate(each) for each in found])


@router.delete("/sessions/{session_id}", status_code=204)
def delete_session(session_id: int, hub: HubDep, caller: UserDep) -> Response:
    """Log the caller out of one browser."""
    sessions.end_own(hub.registry, caller, session_id)
    return Response(status_code=204)

"""Logging in by a provider of OpenID Connect, and connecting an account of it with a user.

A signed cookie keeps what belongs to one login until the provider sends the browser back: a state
against requests that other sites make, a nonce against ID tokens of other logins, and the verifier
of PKCE against stolen codes.
"""

import secrets
from typing import TYPE_CHECKING, Annotated, Final

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from deltahub.registry.access.login import identities
from deltahub.registry.errors import (
    Busy,
    Conflict,
    Forbidden,
    InvalidName,
    NameTaken,
    RegistryError,
    Unauthorized,
    Unavailable,
)
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.browser_sessions import check_csrf, cookie_name
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.public_url import origin_of
from deltahub.server.signing import Claims
from deltahub.server.web.account.login import begun, local_path, login_page
from deltahub.server.web.account.turns import Logins, LoginsDep
from deltahub.server.web.errors import error_page

if TYPE_CHECKING:
    from deltahub.server.openid.provider import Provider

router = APIRouter(route_class=BoundedRoute, prefix="/-/login/openid")

COOKIE: Final = "deltahub_openid"
_PURPOSE: Final = "openid login"
_LIFE_S: Final = 600
_REFUSALS: Final = (
    Busy, Conflict, Forbidden, InvalidName, NameTaken, Unauthorized, Unavailable,
)  # fmt: skip


@router.get("")
async def begin_openid_login(
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    logins: LoginsDep,
    next_path: Annotated[str, Query(alias="next")] = "/",
    connect: str | None = None,
) -> Response:
    """Send the browser to the provider.

    connect: a token of a form: the account is then connected with the user who is logged in. The
    provider is another site, to which the policy of our pages lets no form lead.
    """
    provider = _provider(logins)
    next_path = local_path(next_path)
    for_session = ""
    if connect is not None:
        check_csrf(hub.signer, viewer, connect)
        if viewer is None:
            raise Unauthorized("log in first, and then connect your account")
        for_session = viewer.token_mark
    claims: dict[str, str | int] = {
        "state": secrets.token_urlsafe(24),
        "nonce": secrets.token_urlsafe(24),
        "verifier": secrets.token_urlsafe(48),
        "next": next_path,
        "session": for_session,
    }
    try:
        address = await logins.ask(
            request,
            lambda: provider.login_address(
                _back(request), str(claims["state"]), str(claims["nonce"]), str(claims["verifier"])
            ),
        )
    except _REFUSALS as error:
        return login_page(request, hub, next_path, error)
    answer = RedirectResponse(address, 303)
    answer.set_cookie(
        cookie_name(request, COOKIE), hub.signer.sign(_PURPOSE, claims, _LIFE_S),
        max_age=_LIFE_S, path="/", secure=request.url.scheme == "https",
        httponly=True, samesite="lax",
    )  # fmt: skip
    return answer


@router.get("/back")
async def end_openid_login(
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    logins: LoginsDep,
    state: str = "",
    code: str = "",
    error: str = "",
    iss: str | None = None,
) -> Response:
    """Take what the provider says, and begin a session."""
    provider = _provider(logins)
    next_path = "/"
    try:
        begun_with = _claims_of(request, hub, state)
        next_path = local_path(str(begun_with["next"]))
        if iss is not None and iss != provider.issuer:
            raise Forbidden("another provider answered than the one that was asked: try again")
        if error or not code:
            raise Forbidden(
                "the provider did not log you in"
                + (": you, or it, said no" if error == "access_denied" else "; try again")
            )
        person = await logins.ask(
            request,
            lambda: provider.person_of(
                code, _back(request), str(begun_with["nonce"]), str(begun_with["verifier"])
            ),
        )

        def begin() -> Response:
            reg, who = hub.registry, (person.issuer, person.subject)
            if begun_with["session"]:
                if viewer is None or viewer.token_mark != begun_with["session"]:
                    raise Forbidden("you are not logged in any more as when this began: try again")
                identities.connect(reg, viewer, *who)
                return RedirectResponse("/-/settings", 303)
            creates = hub.settings.oidc_creates_users
            user_id = identities.log_in(reg, *who, person.wished_name, creates=creates)
            return begun(request, hub, user_id, "openid", next_path)

        answer = await anyio.to_thread.run_sync(begin)
    except _REFUSALS as refusal:
        answer = _refused(request, hub, next_path, refusal, is_known=viewer is not None)
    answer.delete_cookie(
        cookie_name(request, COOKIE), path="/", secure=request.url.scheme == "https",
        httponly=True, samesite="lax",
    )  # fmt: skip
    return answer


def _refused(
    request: Request, hub: Hub, next_path: str, error: RegistryError, *, is_known: bool
) -> Response:
    if is_known:
        return error_page(request, 403, str(error))
    return login_page(request, hub, next_path, error)


def _claims_of(request: Request, hub: Hub, state: str) -> Claims:
    """What the cookie keeps of the login with this state. Raises Forbidden."""
    try:
        claims = hub.signer.verify(_PURPOSE, request.cookies.get(cookie_name(request, COOKIE), ""))
    except (Unauthorized, ValueError) as error:
        raise Forbidden(
            "this login did not begin in this browser, or began more than ten minutes ago: begin"
            " again"
        ) from error
    if not secrets.compare_digest(str(claims["state"]).encode(), state.encode()):
        raise Forbidden("this answer belongs to another login: begin again")
    return claims


def _provider(logins: Logins) -> "Provider":
    if logins.provider is None:
        raise HTTPException(404)
    return logins.provider


def _back(request: Request) -> str:
    """Where the provider sends browsers: the address that is registered there."""
    return f"{origin_of(request)}/-/login/openid/back"

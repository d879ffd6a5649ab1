"""What administrators change on their pages."""

import re
from fractions import Fraction
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from deltahub.registry.access import tokens
from deltahub.registry.access.login import sessions
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted
from deltahub.registry.quotas import limits
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import HubDep
from deltahub.server.web.admin.viewer import AdminDep
from deltahub.server.web.forms import FormDep

router = APIRouter(route_class=BoundedRoute, prefix="/-/admin")

_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGTP])(I?))?B?", re.IGNORECASE)


@router.post("/access/tokens/{token_id}/revoke")
def revoke_token(token_id: int, hub: HubDep, viewer: AdminDep) -> Response:
    """Delete anybody's token."""
    tokens.revoke_token(hub.registry, token_id, by=viewer)
    return RedirectResponse("/-/admin/access/tokens", 303)


@router.post("/access/sessions/{session_id}/end")
def end_session(session_id: int, hub: HubDep, viewer: AdminDep) -> Response:
    """End the session of anybody's browser."""
    sessions.end_session(hub.registry, viewer, session_id)
    return RedirectResponse("/-/admin/access/sessions", 303)


@router.post("/storage/namespaces/{namespace}/quota")
def set_quota(namespace: str, hub: HubDep, viewer: AdminDep, form: FormDep) -> Response:
    """Set what a namespace may use; with `clear`, let the hub's defaults count again."""
    given = None
    if "clear" not in form:
        given = limits.Limits(
            _count(form.get("repositories", "")),
            _bytes(form.get("stored", "")),
            _bytes(form.get("files", "")),
        )
    limits.set_limits(hub.registry, viewer, namespace, given, by_shell=False)
    return RedirectResponse(f"/-/admin/storage/namespaces?words={quote(namespace, safe='')}", 303)


def _count(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise InvalidRequest(f"{quoted(text)} is no number of models: write 100, or nothing")
    return int(text)


def _bytes(text: str) -> int | None:
    """Bytes of a size as people write it: K, M, G, T and P are powers of 1000, with i of 1024."""
    if not text:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{quoted(text)} is no size: write 500 GB, 1.5 TB or 2 GiB")
    unit = (1024 if match[3] else 1000) ** " KMGTP".index((match[2] or " ").upper())
    return int(Fraction(match[1]) * unit)

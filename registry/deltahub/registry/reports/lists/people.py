"""Users, organizations, tokens and sessions of a hub."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import ColumnElement, func, select

from deltahub.registry.db.columns import UtcDateTime
from deltahub.registry.db.expressions import contains
from deltahub.registry.db.models import Membership, Namespace, Token, User, utc_now
from deltahub.registry.db.paging.keyset import Asked, Page, read_page
from deltahub.registry.db.tables.logins import WebSession
from deltahub.registry.registry import Registry

_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOR_EVER: Final = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class UserRow:
    """seen_at: when a browser of the user last asked for something; tokens do not say."""

    id: int
    name: str
    is_admin: bool
    created_at: datetime
    disabled_at: datetime | None
    seen_at: datetime | None
    n_tokens: int
    n_sessions: int


@dataclass(frozen=True)
class TokenRow:
    id: int
    user: str
    scope: str
    label: str
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True)
class SessionRow:
    id: int
    user: str
    agent: str
    address: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class OrganizationRow:
    """n_admins: members who may manage it."""

    name: str
    n_members: int
    n_admins: int


def list_users(
    reg: Registry, asked: Asked, *, words: str = "", state: str = "all"
) -> Page[UserRow]:
    """Users whose name contains `words`. state: all, active, disabled or admin."""
    seen = (
        select(func.max(WebSession.seen_at, type_=UtcDateTime()))
        .where(WebSession.user_id == User.id)
        .scalar_subquery()
    )
    n_tokens = select(func.count()).where(Token.user_id == User.id).scalar_subquery()
    n_sessions = (
        select(func.count())
        .where(WebSession.user_id == User.id, WebSession.expires_at > utc_now())
        .scalar_subquery()
    )
    query = select(User, seen, n_tokens, n_sessions)
    if words:
        query = query.where(_has(User.name, words))
    if state == "disabled":
        query = query.where(User.disabled_at.is_not(None))
    elif state == "active":
        query = query.where(User.disabled_at.is_(None))
    elif state == "admin":
        query = query.where(User.is_admin)
    columns = {
        "name": User.name,
        "created": User.created_at,
        "seen": func.coalesce(seen, _NEVER, type_=UtcDateTime()),
        "tokens": n_tokens,
    }
    with reg.db.read() as session:
        page = read_page(session, query, columns, User.id, asked)
        rows = [
            UserRow(
                user.id, user.name, user.is_admin, user.created_at, user.disabled_at,
                seen_at, tokens, sessions,
            )
            for user, seen_at, tokens, sessions, *_ in page.items
        ]  # fmt: skip
    return Page(rows, page.after)


def list_tokens(reg: Registry, asked: Asked, *, user: str = "") -> Page[TokenRow]:
    """Tokens of users whose name contains `user`."""
    query = select(Token, User.name).join(User, User.id == Token.user_id)
    if user:
        query = query.where(_has(User.name, user))
    columns = {
        "created": Token.created_at,
        "user": User.name,
        "expires": func.coalesce(Token.expires_at, _FOR_EVER, type_=UtcDateTime()),
        "scope": Token.scope,
    }
    with reg.db.read() as session:
        page = read_page(session, query, columns, Token.id, asked)
        rows = [
            TokenRow(t.id, name, t.scope, t.label, t.created_at, t.expires_at)
            for t, name, *_ in page.items
        ]
    return Page(rows, page.after)


def list_sessions(reg: Registry, asked: Asked, *, user: str = "") -> Page[SessionRow]:
    """Sessions that have not ended, of users whose name contains `user`."""
    query = (
        select(WebSession, User.name)
        .join(User, User.id == WebSession.user_id)
        .where(WebSession.expires_at > utc_now())
    )
    if user:
        query = query.where(_has(User.name, user))
    columns = {
        "seen": WebSession.seen_at,
        "user": User.name,
        "created": WebSession.created_at,
        "address": WebSession.address,
    }
    with reg.db.read() as session:
        page = read_page(session, query, columns, WebSession.id, asked)
        rows = [
            SessionRow(s.id, name, s.agent, s.address, s.created_at, s.seen_at, s.expires_at)
            for s, name, *_ in page.items
        ]
    return Page(rows, page.after)


def list_organizations(reg: Registry, asked: Asked, *, words: str = "") -> Page[OrganizationRow]:
    """Organizations whose name contains `words`."""
    members = select(func.count()).where(Membership.namespace_id == Namespace.id)
    n_members = members.scalar_subquery()
    n_admins = members.where(Membership.role == "admin").scalar_subquery()
    query = select(Namespace.name, n_members, n_admins).where(Namespace.kind == "organization")
    if words:
        query = query.where(_has(Namespace.name, words))
    columns = {"name": Namespace.name, "members": n_members}
    with reg.db.read() as session:
        page = read_page(session, query, columns, Namespace.id, asked)
        rows = [OrganizationRow(name, n, admins) for name, n, admins, *_ in page.items]
    return Page(rows, page.after)


def _has(column: ColumnElement[str] | object, words: str) -> ColumnElement[bool]:
    return contains(func.lower(column), words.lower())

"""Users, their tokens, organizations and who belongs to them."""

import hashlib
import itertools
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from sqlalchemy import delete, exists, func, select

from deltahub.registry import audit
from deltahub.registry.db.models import Membership, Namespace, Token, User, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import (
    InvalidName,
    InvalidRequest,
    NameTaken,
    NotFound,
    Unauthorized,
)
from deltahub.registry.paths import RESERVED_NAMESPACES, quoted, validate_name
from deltahub.registry.permissions import ANONYMOUS, Caller, Role, Scope
from deltahub.registry.registry import Registry

TOKEN_PREFIX = "dh_"
_MARK = re.compile(r"([0-9]{1,18})-([0-9a-f]{16})")
MAX_LABEL = 200


@dataclass(frozen=True)
class TokenInfo:
    """A token as listed: everything but the secret."""

    id: int
    user: str
    scope: Scope
    label: str
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True)
class OrganizationInfo:
    """An organization and the roles of its members, by name."""

    name: str
    members: Mapping[str, str]


def create_user(reg: Registry, name: str, *, is_admin: bool = False) -> User:
    """A new user with the namespace of the same name; InvalidName, NameTaken."""
    validate_name(name, "user")
    with reg.db.write() as session:
        return _add_user(session, name, is_admin=is_admin)


def list_users(reg: Registry) -> list[User]:
    """All users by name."""
    with reg.db.read() as session:
        return list(session.scalars(select(User).order_by(User.name)))


def create_token(
    reg: Registry, user_name: str, scope: Scope, label: str = "", ttl_s: int | None = None
) -> str:
    """The secret of a new token, shown this once; ttl_s None never expires.

    InvalidRequest for scope admin of a user who is no administrator: it would allow nothing more.
    """
    with reg.db.write() as session:
        user = user_named(session, user_name)
        if scope == "admin" and not user.is_admin:
            raise InvalidRequest(
                f"{user.name} is no administrator: scope admin would allow them no more than"
                " scope write does"
            )
        return _add_token(session, user, scope, label, ttl_s)


def list_tokens(reg: Registry, user_name: str | None = None) -> list[TokenInfo]:
    """Tokens by id, of one user or of all."""
    query = select(Token, User.name).join(User, User.id == Token.user_id).order_by(Token.id)
    with reg.db.read() as session:
        if user_name is not None:
            query = query.where(Token.user_id == user_named(session, user_name).id)
        return [
            TokenInfo(t.id, name, _scope(t.scope), t.label, t.created_at, t.expires_at)
            for t, name in session.execute(query)
        ]


def revoke_token(reg: Registry, token_id: int) -> None:
    """Make a token useless at once, and what was signed for its holder with it; NotFound."""
    with reg.db.write() as session:
        token = session.get(Token, token_id)
        if token is None:
            raise NotFound(f"there is no token {token_id}; `deltahub user token list` shows them")
        user = session.get_one(User, token.user_id)
        audit.append(session, None, "token.revoke", user.name, {"token_id": token.id})
        session.delete(token)


def authenticate(reg: Registry, secret: str) -> Caller:
    """Who holds this token; Unauthorized if it is unknown, revoked or expired."""
    query = (
        select(Token, User).join(User, User.id == Token.user_id).where(Token.hash == _hash(secret))
    )
    with reg.db.read() as session:
        row = session.execute(query).one_or_none()
    if row is None:
        raise Unauthorized(
            "this token is not known: it was revoked, or is of another hub; the hub's operator"
            " makes one with `deltahub user token create`"
        )
    return _holder(*row)


def caller_of_mark(session: ReadSession, mark: str) -> Caller:
    """Who holds the token with this Caller.token_mark; Unauthorized as authenticate."""
    match = _MARK.fullmatch(mark)
    token = None if match is None else session.get(Token, int(match[1]))
    if match is None or token is None or not token.hash.startswith(match[2]):
        raise Unauthorized("the token for which the hub signed this was revoked")
    return _holder(token, session.get_one(User, token.user_id))


def create_organization(reg: Registry, name: str) -> Namespace:
    """A namespace that several users may belong to; InvalidName, NameTaken."""
    validate_name(name, "organization")
    with reg.db.write() as session:
        namespace = _add_namespace(session, name, "organization")
        audit.append(session, None, "organization.create", name)
        return namespace


def add_member(reg: Registry, organization: str, user_name: str, role: Role) -> None:
    """Give a user a role in an organization, in place of the one they have, if any."""
    _check_choice("role", role, get_args(Role))
    with reg.db.write() as session:
        namespace = _organization_named(session, organization)
        user = user_named(session, user_name)
        session.merge(Membership(namespace_id=namespace.id, user_id=user.id, role=role))
        audit.append(
            session, None, "organization.member", organization, {"user": user.name, "role": role}
        )


def remove_member(reg: Registry, organization: str, user_name: str) -> None:
    """Take a user's role in an organization away; NotFound, also for one who has none."""
    with reg.db.write() as session:
        namespace = _organization_named(session, organization)
        user = user_named(session, user_name)
        of_user = (Membership.namespace_id == namespace.id) & (Membership.user_id == user.id)
        if session.scalar(select(Membership.role).where(of_user)) is None:
            raise NotFound(
                f"{user.name} is no member of {namespace.name};"
                " `deltahub user org list` shows who is"
            )
        session.execute(delete(Membership).where(of_user))
        audit.append(session, None, "organization.remove", organization, {"user": user.name})


def list_organizations(reg: Registry) -> list[OrganizationInfo]:
    """All organizations with their members, by name."""
    query = (
        select(Namespace.name, User.name, Membership.role)
        .outerjoin(Membership, Membership.namespace_id == Namespace.id)
        .outerjoin(User, User.id == Membership.user_id)
        .where(Namespace.kind == "organization")
        .order_by(Namespace.name, User.name)
    )
    found: dict[str, dict[str, str]] = {}
    with reg.db.read() as session:
        for name, user, role in session.execute(query):
            members = found.setdefault(name, {})
            if user is not None:
                members[user] = role
    return [OrganizationInfo(name, members) for name, members in found.items()]


def namespaces_of(reg: Registry, caller: Caller) -> Mapping[str, str]:
    """The caller's namespaces and roles, by name."""
    query = (
        select(Namespace.name, Membership.role)
        .join(Membership, Membership.namespace_id == Namespace.id)
        .where(Membership.user_id == caller.user_id)
        .order_by(Namespace.name)
    )
    with reg.db.read() as session:
        return {name: role for name, role in session.execute(query)}


def bootstrap_admin(reg: Registry) -> str | None:
    """The token of a new administrator if the hub has none, returned this once; else None.

    It is called `admin`, or `admin-2` and so on: nobody who has the name already is raised.
    """
    with reg.db.write() as session:
        if session.scalar(select(exists(select(User.id).where(User.is_admin)))):
            return None
        names = itertools.chain(["admin"], (f"admin-{i}" for i in itertools.count(2)))
        name = next(name for name in names if _taken_by(session, name) is None)
        admin = _add_user(session, name, is_admin=True)
        return _add_token(session, admin, "admin", "first start", None)


def user_named(session: ReadSession, name: str) -> User:
    """The user; NotFound."""
    user = session.scalar(select(User).where(User.name == name))
    if user is None:
        raise NotFound(f"there is no user {quoted(name)}; `deltahub user list` shows them")
    return user


def _add_user(session: WriteSession, name: str, *, is_admin: bool) -> User:
    namespace = _add_namespace(session, name, "user")
    user = User(name=name, is_admin=is_admin)
    session.add(user)
    session.flush()
    session.add(Membership(namespace_id=namespace.id, user_id=user.id, role="admin"))
    audit.append(session, ANONYMOUS, "user.create", name, {"is_admin": is_admin})
    return user


def _organization_named(session: ReadSession, name: str) -> Namespace:
    namespace = session.scalar(select(Namespace).where(Namespace.name == name))
    if namespace is None or namespace.kind != "organization":
        raise NotFound(
            f"there is no organization {quoted(name)}; `deltahub user org list` shows them,"
            " `deltahub user org add` makes one"
        )
    return namespace


def _taken_by(session: ReadSession, name: str) -> str | None:
    """The name of the user or organization that has this name, in whatever case."""
    same = func.lower(Namespace.name) == name.lower()
    exact_first = (Namespace.name != name, Namespace.name)
    return session.scalar(select(Namespace.name).where(same).order_by(*exact_first).limit(1))


def _add_namespace(session: WriteSession, name: str, kind: str) -> Namespace:
    if name.lower() in RESERVED_NAMESPACES:
        raise InvalidName(f"{quoted(name)} is a word of this hub's own addresses; choose another")
    taken = _taken_by(session, name)
    if taken == name:
        raise NameTaken(f"{quoted(name)} is the name of a user or organization already")
    if taken is not None:
        raise NameTaken(
            f"{quoted(name)} differs only in upper and lower case from {quoted(taken)}, a user or"
            " organization: choose a name that nobody mistakes for it"
        )
    namespace = Namespace(name=name, kind=kind)
    session.add(namespace)
    session.flush()
    return namespace


def _add_token(
    session: WriteSession, user: User, scope: Scope, label: str, ttl_s: int | None
) -> str:
    _check_choice("scope", scope, get_args(Scope))
    if len(label) > MAX_LABEL:
        raise InvalidRequest(f"a token's label has at most {MAX_LABEL} characters")
    if ttl_s is not None and ttl_s <= 0:
        raise InvalidRequest(f"a token must live for more than {ttl_s} s")
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    expires_at = None if ttl_s is None else utc_now() + timedelta(seconds=ttl_s)
    token = Token(
        user_id=user.id, hash=_hash(secret), scope=scope, label=label, expires_at=expires_at
    )
    session.add(token)
    session.flush()
    audit.append(session, None, "token.create", user.name, {"token_id": token.id, "scope": scope})
    return secret


def _holder(token: Token, user: User) -> Caller:
    if token.expires_at is not None and token.expires_at <= utc_now():
        raise Unauthorized(f"this token of {user.name} expired at {token.expires_at:%F %T} UTC")
    # Ids alone come again: SQLite gives the last one, once deleted, to the next token.
    mark = f"{token.id}-{token.hash[:16]}"
    return Caller(user.id, user.name, user.is_admin, _scope(token.scope), mark)


def _hash(secret: str) -> str:
    # A random secret of 256 bits needs no salt and no slow hash.
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _scope(value: str) -> Scope:
    for scope in get_args(Scope):
        if value == scope:
            return scope  # type: ignore[no-any-return]  # get_args gives Any
    raise AssertionError(f"a token has the unknown scope {value!r}")


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidRequest(f"{quoted(value)} is no {what}: one of {', '.join(choices)}")

"""Access tokens with a scope and an expiry. The hub stores a hash and shows the secret once."""

import hashlib
import re
import secrets
import string
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from sqlalchemy import func, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, Scope, require_writer
from deltahub.registry.access.login.sessions import (
    MARK_PREFIX,
    caller_of_session_mark,
    session_id_of,
)
from deltahub.registry.access.users import check_choice, user_named
from deltahub.registry.db.models import Token, User, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.logins import WebSession
from deltahub.registry.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    TokenExpired,
    Unauthorized,
)
from deltahub.registry.registry import Registry

# Hugging Face's JavaScript clients refuse tokens that begin otherwise, and secret scanners know
# this form: 34 letters after it. Tokens of older releases begin with dh_, and stay good.
TOKEN_PREFIX = "hf_"
_TOKEN_LETTERS = 34
_MARK = re.compile(r"([0-9]{1,18})-([0-9a-f]{16})")
MAX_LABEL = 200
# That users make themselves.
MOST_OWN = 500
MAX_TTL_S = 100 * 365 * 86400


@dataclass(frozen=True)
class TokenInfo:
    """A token without its secret, for lists."""

    id: int
    user: str
    scope: Scope
    label: str
    created_at: datetime
    expires_at: datetime | None

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= utc_now()


def create_token(
    reg: Registry, user_name: str, scope: Scope, label: str = "", ttl_s: int | None = None
) -> str:
    """The secret of a new token. No other function returns it.

    ttl_s: lifetime in seconds; None: the token never expires. InvalidRequest for scope admin of a
    user who is no administrator, because it would allow no more than scope write.
    """
    with reg.db.write() as session:
        user = user_named(session, user_name)
        if scope == "admin" and not user.is_admin:
            raise InvalidRequest(
                f"{user.name} is no administrator: scope admin would allow them no more than"
                " scope write does"
            )
        return add_token(session, user, scope, label, ttl_s)


def list_tokens(reg: Registry, user_name: str | None = None) -> list[TokenInfo]:
    """The tokens of one user, or of all users, ordered by id."""
    query = select(Token, User.name).join(User, User.id == Token.user_id).order_by(Token.id)
    with reg.db.read() as session:
        if user_name is not None:
            query = query.where(Token.user_id == user_named(session, user_name).id)
        return [
            TokenInfo(t.id, name, _scope(t.scope), t.label, t.created_at, t.expires_at)
            for t, name in session.execute(query)
        ]


def revoke_token(reg: Registry, token_id: int, *, by: Caller | None = None) -> None:
    """Delete a token. Links and claims signed for it become invalid at once too; NotFound.

    by: who does it, for the audit log; None: the operator's shell.
    """
    with reg.db.write() as session:
        token = session.get(Token, token_id)
        if token is None:
            raise NotFound(f"there is no token {token_id}; `deltahub user token list` shows them")
        user = session.get_one(User, token.user_id)
        audit.append(session, by, "token.revoke", user.name, {"token_id": token.id})
        session.delete(token)


def create_own(
    reg: Registry, caller: Caller, scope: Scope, label: str = "", ttl_s: int | None = None
) -> str:
    """The secret of a new token of the caller, as create_token().

    It allows no more than the caller may now. One that is made with a token ends with that token's
    time at the latest, so that a token cannot prolong itself. Forbidden, InvalidRequest.
    """
    require_writer(caller)
    check_choice("scope", scope, get_args(Scope))
    if scope == "admin" and not caller.is_superuser:
        raise Forbidden(
            "a token of scope admin is made by administrators, in a session or with a token that"
            " has scope admin itself"
        )
    with reg.db.write() as session:
        end = _end_of(session, caller)
        if end is not None:
            left_s = max(1, int((end - utc_now()).total_seconds()))
            ttl_s = left_s if ttl_s is None else min(ttl_s, left_s)
        own = select(func.count()).where(Token.user_id == caller.user_id)
        if (session.scalar(own) or 0) >= MOST_OWN:
            raise Forbidden(
                f"{caller.name} has {MOST_OWN} tokens, and may make no more: revoke some"
            )
        user = session.get_one(User, caller.user_id)
        return add_token(session, user, scope, label, ttl_s, by=caller)


def revoke_own(reg: Registry, caller: Caller, token_id: int) -> None:
    """revoke_token() for a token of the caller; NotFound also for those of others."""
    require_writer(caller)
    with reg.db.write() as session:
        token = session.get(Token, token_id)
        if token is None or token.user_id != caller.user_id:
            raise NotFound(f"you have no token {token_id}")
        audit.append(session, caller, "token.revoke", caller.name, {"token_id": token.id})
        session.delete(token)


def authenticate(reg: Registry, secret: str) -> Caller:
    """The holder of this token; Unauthorized if it is unknown, revoked or expired."""
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
    return holder_of(*row)


def caller_of_mark(session: ReadSession, mark: str) -> Caller:
    """The holder of the token with this Caller.token_mark; Unauthorized as in authenticate()."""
    if mark.startswith(MARK_PREFIX):
        return caller_of_session_mark(session, mark)
    match = _MARK.fullmatch(mark)
    token = None if match is None else session.get(Token, int(match[1]))
    if match is None or token is None or not token.hash.startswith(match[2]):
        raise Unauthorized("the token for which the hub signed this was revoked")
    return holder_of(token, session.get_one(User, token.user_id))


def _end_of(session: ReadSession, caller: Caller) -> datetime | None:
    """When the token ends that the caller shows, or that began the caller's session."""
    session_id = session_id_of(caller)
    if session_id is None:
        token_id: int | None = int(caller.token_mark.partition("-")[0])
    else:
        token_id = session.get_one(WebSession, session_id).token_id
    return None if token_id is None else session.get_one(Token, token_id).expires_at


def add_token(
    session: WriteSession,
    user: User,
    scope: Scope,
    label: str,
    ttl_s: int | None,
    *,
    by: Caller | None = None,
) -> str:
    check_choice("scope", scope, get_args(Scope))
    if len(label) > MAX_LABEL:
        raise InvalidRequest(f"a token's label has at most {MAX_LABEL} characters")
    if ttl_s is not None and not 0 < ttl_s <= MAX_TTL_S:
        raise InvalidRequest(f"a token lives for 1 s to {MAX_TTL_S} s (100 years), not {ttl_s} s")
    letters = (secrets.choice(string.ascii_letters) for _ in range(_TOKEN_LETTERS))
    secret = TOKEN_PREFIX + "".join(letters)
    expires_at = None if ttl_s is None else utc_now() + timedelta(seconds=ttl_s)
    token = Token(
        user_id=user.id, hash=_hash(secret), scope=scope, label=label, expires_at=expires_at
    )
    session.add(token)
    session.flush()
    audit.append(session, by, "token.create", user.name, {"token_id": token.id, "scope": scope})
    return secret


def holder_of(token: Token, user: User) -> Caller:
    """The user who holds a token; Unauthorized if it has expired or the user was disabled."""
    if user.disabled_at is not None:
        raise Unauthorized(f"the user {user.name} was disabled; ask the hub's administrator")
    if token.expires_at is not None and token.expires_at <= utc_now():
        raise TokenExpired(f"this token of {user.name} expired at {token.expires_at:%F %T} UTC")
    # The mark has a part of the hash, because SQLite gives the id of a deleted last token to the
    # next token.
    mark = f"{token.id}-{token.hash[:16]}"
    return Caller(user.id, user.name, user.is_admin, _scope(token.scope), mark)


def _hash(secret: str) -> str:
    # A random secret of 190 bits and more needs no salt and no slow hash.
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _scope(value: str) -> Scope:
    for scope in get_args(Scope):
        if value == scope:
            return scope  # type: ignore[no-any-return]  # get_args gives Any
    raise AssertionError(f"a token has the unknown scope {value!r}")

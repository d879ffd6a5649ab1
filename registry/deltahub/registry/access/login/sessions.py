"""Sessions of browsers: begun by a login, found by the secret in a cookie, ended at any time."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast

from sqlalchemy import Row, Select, delete, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, Scope
from deltahub.registry.db.columns import CLOCK_SLACK
from deltahub.registry.db.models import Token, User, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.logins import WebSession
from deltahub.registry.errors import NotFound, Unauthorized
from deltahub.registry.registry import Registry

LIFETIME: Final = timedelta(days=14)
# Of one user: the oldest end.
MOST: Final = 100
# How exactly `seen_at` is known: to write it at every request would make each a writer.
_SEEN: Final = timedelta(minutes=5)
MARK_PREFIX: Final = "s"
_MAX_AGENT: Final = 300
_MAX_ADDRESS: Final = 64


@dataclass(frozen=True)
class SessionInfo:
    """A session without its secret, for lists."""

    id: int
    user: str
    agent: str
    address: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime


def begin_session(
    reg: Registry,
    user_id: int,
    *,
    agent: str,
    address: str,
    how: str,
    token_mark: str | None = None,
) -> tuple[str, timedelta]:
    """The secret of a new session, and its lifetime. how: password, token and so on, for the log.

    token_mark: of the token that the user showed. The session then allows no more than the token
    does, and ends with it. Unauthorized if the user was disabled, or the token has ended.
    """
    secret = secrets.token_urlsafe(32)
    with reg.db.write_beside() as session:
        user = session.get(User, user_id)
        if user is None or user.disabled_at is not None:
            raise Unauthorized("this user was disabled; ask the hub's administrator")
        token = None if token_mark is None else _token_of(session, token_mark)
        ends = [utc_now() + LIFETIME]
        if token is not None and token.expires_at is not None:
            ends.append(token.expires_at)
        made = WebSession(
            user_id=user.id, hash=_hash(secret), agent=agent[:_MAX_AGENT],
            address=address[:_MAX_ADDRESS], expires_at=min(ends),
            token_id=None if token is None else token.id,
        )  # fmt: skip
        session.add(made)
        # Sessions that have ended need no rows.
        session.execute(delete(WebSession).where(WebSession.expires_at <= utc_now()))
        session.flush()
        kept = (
            select(WebSession.id)
            .where(WebSession.user_id == user.id)
            .order_by(WebSession.id.desc())
            .offset(MOST - 1)
            .limit(1)
        )
        last = session.scalar(kept)
        if last is not None:
            of_user = (WebSession.user_id == user.id) & (WebSession.id < last)
            session.execute(delete(WebSession).where(of_user))
        audit.append(session, _caller(made, user, token), "session.begin", user.name, {"by": how})
    return secret, min(ends) - utc_now()


def session_caller(reg: Registry, secret: str) -> Caller | None:
    """The user who holds this session; None if it has ended."""
    with reg.db.read() as session:
        row = session.execute(_rows().where(WebSession.hash == _hash(secret))).one_or_none()
        if row is None or not _is_valid(row):
            return None
        found, user, token = row
    if found.seen_at < utc_now() - _SEEN:
        with reg.db.write_beside() as session:
            again = session.get(WebSession, found.id)
            if again is not None:
                again.seen_at = utc_now()
    return _caller(found, user, token)


def caller_of_session_mark(session: ReadSession, mark: str) -> Caller:
    """The holder of the session with this Caller.token_mark; Unauthorized once it has ended."""
    number, _, start = mark.removeprefix(MARK_PREFIX).partition("-")
    row = None
    if number.isdecimal() and len(number) < 19 and start:
        row = session.execute(_rows().where(WebSession.id == int(number))).one_or_none()
    if row is None or not row[0].hash.startswith(start) or not _is_valid(row):
        raise Unauthorized("the session for which the hub signed this has ended")
    return _caller(*row)


def list_sessions(reg: Registry, user_id: int | None = None) -> list[SessionInfo]:
    """The sessions of one user, or of all, the latest first."""
    query = (
        select(WebSession, User.name)
        .join(User, User.id == WebSession.user_id)
        .where(WebSession.expires_at > utc_now())
        .order_by(WebSession.seen_at.desc())
    )
    if user_id is not None:
        query = query.where(WebSession.user_id == user_id)
    with reg.db.read() as session:
        return [
            SessionInfo(s.id, name, s.agent, s.address, s.created_at, s.seen_at, s.expires_at)
            for s, name in session.execute(query)
        ]


def end_session(reg: Registry, caller: Caller, session_id: int) -> None:
    """End a session of the caller, or of anybody if the caller is a superuser; NotFound."""
    with reg.db.write() as session:
        found = session.get(WebSession, session_id)
        if found is None or (found.user_id != caller.user_id and not caller.is_superuser):
            raise NotFound(f"there is no session {session_id}")
        user = session.get_one(User, found.user_id)
        audit.append(session, caller, "session.end", user.name, {"session_id": found.id})
        session.delete(found)


def end_own(reg: Registry, caller: Caller, session_id: int) -> None:
    """End a session of the caller; NotFound also for those of others."""
    with reg.db.write() as session:
        found = session.get(WebSession, session_id)
        if found is None or found.user_id != caller.user_id:
            raise NotFound(f"you have no session {session_id}")
        audit.append(session, caller, "session.end", caller.name, {"session_id": found.id})
        session.delete(found)


def end_others(reg: Registry, caller: Caller) -> int:
    """End all sessions of the caller except the one that asks; how many there were."""
    with reg.db.write() as session:
        n = end_all(session, caller.user_id, except_id=session_id_of(caller))
        audit.append(session, caller, "session.end_others", caller.name, {"n": n})
        return n


def end_all(session: WriteSession, user_id: int, *, except_id: int | None = None) -> int:
    """End all sessions of a user, perhaps except one; how many there were."""
    ids = select(WebSession.id).where(WebSession.user_id == user_id)
    ended = [found for found in session.scalars(ids) if found != except_id]
    session.execute(delete(WebSession).where(WebSession.id.in_(ended)))
    return len(ended)


def session_id_of(caller: Caller) -> int | None:
    """The id of the caller's session; None if the caller holds a token."""
    if not caller.token_mark.startswith(MARK_PREFIX):
        return None
    return int(caller.token_mark.removeprefix(MARK_PREFIX).partition("-")[0])


def _rows() -> "Select[WebSession, User, Token | None]":
    """Sessions with their users, and with the tokens that began them."""
    return (
        select(WebSession, User, Token)
        .join(User, User.id == WebSession.user_id)
        .outerjoin(Token, Token.id == WebSession.token_id)
    )


def _is_valid(row: "Row[WebSession, User, Token | None]") -> bool:
    found, user, _ = row
    # One that began while the clock was ahead would be valid for as much longer.
    is_of_now = found.created_at <= utc_now() + CLOCK_SLACK < found.expires_at + CLOCK_SLACK
    return is_of_now and user.disabled_at is None


def _token_of(session: ReadSession, mark: str) -> Token:
    number, _, start = mark.partition("-")
    token = session.get(Token, int(number))
    if token is None or not token.hash.startswith(start):
        raise Unauthorized("this token was revoked")
    return token


def _caller(found: WebSession, user: User, token: Token | None) -> Caller:
    """A session allows all that the user may do, or all that its token may."""
    mark = f"{MARK_PREFIX}{found.id}-{found.hash[:16]}"
    scope: Scope = "admin" if user.is_admin else "write"
    if token is not None:
        scope = cast(Scope, token.scope)
    return Caller(user.id, user.name, user.is_admin, scope, mark)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()

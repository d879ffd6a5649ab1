"""Sessions of browsers: begun by a login, found by the secret in a cookie, ended at any time."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.db.models import User, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.logins import WebSession
from deltahub.registry.errors import NotFound, Unauthorized
from deltahub.registry.registry import Registry

LIFETIME: Final = timedelta(days=14)
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
    reg: Registry, user_id: int, *, agent: str, address: str, how: str
) -> tuple[str, timedelta]:
    """The secret of a new session, and its lifetime. how: password, token and so on, for the log.

    Unauthorized if the user was disabled.
    """
    secret = secrets.token_urlsafe(32)
    with reg.db.write() as session:
        user = session.get(User, user_id)
        if user is None or user.disabled_at is not None:
            raise Unauthorized("this user was disabled; ask the hub's administrator")
        made = WebSession(
            user_id=user.id, hash=_hash(secret), agent=agent[:_MAX_AGENT],
            address=address[:_MAX_ADDRESS], expires_at=utc_now() + LIFETIME,
        )  # fmt: skip
        session.add(made)
        # Sessions that have ended need no rows.
        session.execute(delete(WebSession).where(WebSession.expires_at <= utc_now()))
        session.flush()
        audit.append(session, _caller(made, user), "session.begin", user.name, {"by": how})
    return secret, LIFETIME


def session_caller(reg: Registry, secret: str) -> Caller | None:
    """The user who holds this session; None if it has ended."""
    query = (
        select(WebSession, User)
        .join(User, User.id == WebSession.user_id)
        .where(WebSession.hash == _hash(secret))
    )
    with reg.db.read() as session:
        row = session.execute(query).one_or_none()
        if row is None or not _is_valid(*row):
            return None
        found, user = row
    if found.seen_at < utc_now() - _SEEN:
        with reg.db.write_beside() as session:
            again = session.get(WebSession, found.id)
            if again is not None:
                again.seen_at = utc_now()
    return _caller(found, user)


def caller_of_session_mark(session: ReadSession, mark: str) -> Caller:
    """The holder of the session with this Caller.token_mark; Unauthorized once it has ended."""
    number, _, start = mark.removeprefix(MARK_PREFIX).partition("-")
    found = session.get(WebSession, int(number)) if number.isdigit() else None
    user = None if found is None else session.get_one(User, found.user_id)
    if found is None or user is None or not start or not found.hash.startswith(start):
        raise Unauthorized("the session for which the hub signed this has ended")
    if not _is_valid(found, user):
        raise Unauthorized("the session for which the hub signed this has ended")
    return _caller(found, user)


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


def end_all(session: WriteSession, user_id: int) -> None:
    """End all sessions of a user."""
    session.execute(delete(WebSession).where(WebSession.user_id == user_id))


def session_id_of(caller: Caller) -> int | None:
    """The id of the caller's session; None if the caller holds a token."""
    if not caller.token_mark.startswith(MARK_PREFIX):
        return None
    return int(caller.token_mark.removeprefix(MARK_PREFIX).partition("-")[0])


def _is_valid(found: WebSession, user: User) -> bool:
    return found.expires_at > utc_now() and user.disabled_at is None


def _caller(found: WebSession, user: User) -> Caller:
    """A session allows all that the user may do."""
    mark = f"{MARK_PREFIX}{found.id}-{found.hash[:16]}"
    return Caller(user.id, user.name, user.is_admin, "admin" if user.is_admin else "write", mark)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()

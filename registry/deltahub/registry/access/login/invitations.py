"""Invitations: links by which users set passwords, once. They also replace forgotten ones."""

import hashlib
import secrets
from datetime import timedelta
from typing import Final

from sqlalchemy import delete, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_operator
from deltahub.registry.access.login import passwords, sessions
from deltahub.registry.access.login.hashing import hash_password
from deltahub.registry.access.users import user_named
from deltahub.registry.db.columns import CLOCK_SLACK
from deltahub.registry.db.models import User, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.logins import Invitation
from deltahub.registry.errors import Conflict, NotFound
from deltahub.registry.registry import Registry

LIFETIME: Final = timedelta(days=7)
# It begins like a token, so that logs leave it out like one.
PREFIX: Final = "dh_invite_"
PATH: Final = "/-/invitation/"
_ENDED: Final = (
    "this link has been used, or is older than seven days: ask the hub's administrator for another"
)


def invite(reg: Registry, caller: Caller | None, user_name: str, *, by_shell: bool) -> str:
    """The secret of a new invitation. Earlier ones of this user end.

    by_shell: the operator's shell does it; else the caller must be an administrator of the hub.
    NotFound, Forbidden; Conflict for a user who was disabled.
    """
    require_operator(caller, by_shell=by_shell)
    with reg.db.write() as session:
        user = user_named(session, user_name)
        return add_invitation(session, caller, user)


def add_invitation(session: WriteSession, caller: Caller | None, user: User) -> str:
    if user.disabled_at is not None:
        raise Conflict(
            f"{user.name} was disabled and could not log in: `deltahub user enable {user.name}`"
            " comes first"
        )
    secret = PREFIX + secrets.token_urlsafe(32)
    end_all(session, user.id)
    session.add(Invitation(user_id=user.id, hash=_hash(secret), expires_at=utc_now() + LIFETIME))
    audit.append(session, caller, "user.invite", user.name)
    return secret


def invited_user(reg: Registry, secret: str) -> str:
    """The name of the user who may set a password by this link; NotFound once it has ended."""
    with reg.db.read() as session:
        return _user_of(session, secret).name


def accept(reg: Registry, secret: str, password: str) -> int:
    """Set the password of the invited user; the user's id. All sessions of the user end.

    InvalidRequest for a short password; NotFound if the link has been used or is too old.
    """
    passwords.check_length(password)
    invited_user(reg, secret)  # before the hash, which costs
    hashed = hash_password(password)
    with reg.db.write() as session:
        user = _user_of(session, secret)
        passwords.put(session, user, hashed)
        end_all(session, user.id)
        sessions.end_all(session, user.id)
        audit.append(session, Caller(user.id, user.name, False, "write"), "password.set", user.name)
        return user.id


def end_all(session: WriteSession, user_id: int) -> None:
    """End all invitations of a user."""
    session.execute(delete(Invitation).where(Invitation.user_id == user_id))


def _user_of(session: ReadSession, secret: str) -> User:
    query = (
        select(User)
        .join(Invitation, Invitation.user_id == User.id)
        .where(
            Invitation.hash == _hash(secret),
            Invitation.expires_at > utc_now(),
            Invitation.created_at <= utc_now() + CLOCK_SLACK,
            User.disabled_at.is_(None),
        )
    )
    user = session.scalar(query)
    if user is None:
        raise NotFound(_ENDED)
    return user


def _hash(secret: str) -> str:
    # A random secret of 256 bits needs no salt and no slow hash.
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()

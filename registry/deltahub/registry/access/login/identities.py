"""Users as a provider of OpenID Connect knows them: by issuer and subject, never by e-mail."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.users import add_user
from deltahub.registry.db.models import User, utc_now
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.tables.logins import Identity
from deltahub.registry.errors import Conflict, Forbidden, InvalidName, NameTaken
from deltahub.registry.names import MAX_NAME, quoted, validate_name
from deltahub.registry.registry import Registry

_MOST: Final = 300
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NOT_AT_START: Final = re.compile(r"^[^A-Za-z0-9]+")


@dataclass(frozen=True)
class IdentityInfo:
    """An account elsewhere that is connected with a user."""

    issuer: str
    subject: str
    created_at: datetime


def log_in(reg: Registry, issuer: str, subject: str, wished_name: str, *, creates: bool) -> int:
    """The id of the user with this identity. The first time it creates one.

    wished_name: what the provider calls the person. creates: False: only users that have connected
    the identity themselves. Forbidden; InvalidName if the name cannot be one; NameTaken if somebody
    else has it.
    """
    _check(issuer, subject)
    with reg.db.read() as session:
        found = session.get(Identity, (issuer, subject))
    if found is not None:
        return found.user_id
    if not creates:
        raise Forbidden(
            "no user of this hub is connected with that account: log in with a token or a password"
            " and connect it on the page Profile, or ask the hub's administrator"
        )
    name = clean_name(wished_name)
    with reg.db.write() as session:
        again = session.get(Identity, (issuer, subject))
        if again is not None:  # another tab was faster
            return again.user_id
        try:
            user = add_user(session, name, is_admin=False)
        except NameTaken as error:
            raise NameTaken(
                f"the name {name} belongs to somebody else on this hub already: if that is you, log"
                " in with a token or a password and connect your account on the page Profile;"
                " otherwise ask the hub's administrator"
            ) from error
        _add(session, user, issuer, subject)
        return user.id


def connect(reg: Registry, caller: Caller, issuer: str, subject: str) -> None:
    """Let the caller log in with this identity from now on; Conflict if it is another user's."""
    require_writer(caller)
    _check(issuer, subject)
    with reg.db.write() as session:
        found = session.get(Identity, (issuer, subject))
        if found is None:
            _add(session, session.get_one(User, caller.user_id), issuer, subject)
        elif found.user_id != caller.user_id:
            raise Conflict("that account is connected with another user of this hub already")


def disconnect(reg: Registry, caller: Caller, issuer: str, subject: str) -> None:
    """Take a way to log in away from the caller. Nothing happens if it is not the caller's."""
    require_writer(caller)
    with reg.db.write() as session:
        found = session.get(Identity, (issuer, subject))
        if found is not None and found.user_id == caller.user_id:
            session.delete(found)
            audit.append(session, caller, "identity.disconnect", caller.name, {"issuer": issuer})


def list_own(reg: Registry, caller: Caller) -> list[IdentityInfo]:
    """The accounts that the caller may log in with."""
    query = select(Identity).where(Identity.user_id == caller.user_id).order_by(Identity.created_at)
    with reg.db.read() as session:
        return [IdentityInfo(i.issuer, i.subject, i.created_at) for i in session.scalars(query)]


def clean_name(wished: str) -> str:
    """The nearest name that a user may have; InvalidName if there is none.

    An e-mail address loses its domain, other characters become dashes.
    """
    name = _NOT_IN_NAMES.sub("-", wished.partition("@")[0].strip())
    name = re.sub(r"\.{2,}", ".", _NOT_AT_START.sub("", name))
    name = re.sub(r"(\.(git|lock))+$", "", name[:MAX_NAME]).rstrip("-.")
    try:
        return validate_name(name, "user")
    except InvalidName as error:
        raise InvalidName(
            f"your account elsewhere is called {quoted(wished)}, of which no name for a user can be"
            " made: ask the hub's administrator for a user"
        ) from error


def _add(session: WriteSession, user: User, issuer: str, subject: str) -> None:
    session.add(Identity(issuer=issuer, subject=subject, user_id=user.id, created_at=utc_now()))
    as_user = Caller(user.id, user.name, user.is_admin, "write")
    audit.append(session, as_user, "identity.connect", user.name, {"issuer": issuer})


def _check(issuer: str, subject: str) -> None:
    if not subject or len(subject) > _MOST or len(issuer) > _MOST:
        raise Forbidden(f"the provider names you by no text of 1 to {_MOST} characters")

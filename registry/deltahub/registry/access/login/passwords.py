"""Passwords: what a login by name is checked against, and how guessing is slowed down.

Each attempt is counted before it is checked, in the user's row. So guesses that come at once, or
at several servers, count like those that come one by one.
"""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import ANONYMOUS, Caller
from deltahub.registry.access.login import sessions
from deltahub.registry.access.login.hashing import hash_password, is_outdated, is_password
from deltahub.registry.db.columns import CLOCK_SLACK
from deltahub.registry.db.models import User, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.logins import Password
from deltahub.registry.errors import Forbidden, InvalidRequest, Unauthorized
from deltahub.registry.names import is_name
from deltahub.registry.registry import Registry

MIN_LENGTH: Final = 10
FREE_FAILURES: Final = 5
# The pause after the fifth failure; it doubles with each further one, up to the longest.
FIRST_PAUSE: Final = timedelta(seconds=5)
LONGEST_PAUSE: Final = timedelta(minutes=10)
# Failures are forgotten after a day without one.
_FORGOTTEN: Final = timedelta(days=1)
# One sentence for every reason, because another would say which users there are.
WRONG: Final = (
    "the name or the password is wrong; after five wrong ones the hub takes none for a while, up to"
    " ten minutes, also not the right one"
)


def log_in(reg: Registry, name: str, password: str) -> int:
    """The id of the user of this name and password.

    Unauthorized with the same text for a name that nobody has, for a user without a password, for a
    wrong one, and for one that comes in a pause.
    """
    found = _counted(reg, name)
    user_id, hashed = found or (0, None)
    if not is_password(hashed, password) or hashed is None:
        raise Unauthorized(WRONG)
    _note_success(reg, user_id, hashed, password)
    return user_id


def change_own(reg: Registry, caller: Caller, old: str, new: str) -> None:
    """Set the caller's password; it ends the caller's other sessions.

    old: the password until now, if there is one. InvalidRequest for a short password; Forbidden if
    the old one is wrong, or for a token that may not write.
    """
    if not caller.may_write:
        raise Forbidden("this session began with a token of scope read, which changes nothing")
    check_length(new)
    if has_password(reg, caller):
        try:
            log_in(reg, caller.name, old)
        except Unauthorized as error:
            raise Forbidden(
                "the current password is wrong; after five wrong ones the hub takes none for a"
                " while, up to ten minutes, also not the right one"
            ) from error
    hashed = hash_password(new)
    with reg.db.write() as session:
        user = session.get_one(User, caller.user_id)
        put(session, user, hashed)
        sessions.end_all(session, user.id, except_id=sessions.session_id_of(caller))
        audit.append(session, caller, "password.change", user.name)


def has_password(reg: Registry, caller: Caller) -> bool:
    """Whether the caller has a password."""
    with reg.db.read() as session:
        return session.get(Password, caller.user_id) is not None


def check_length(password: str) -> None:
    """InvalidRequest if a new password is too short. There are no other rules."""
    if len(password) < MIN_LENGTH:
        raise InvalidRequest(
            f"a password has at least {MIN_LENGTH} characters, and may be a whole sentence"
        )


def put(session: WriteSession, user: User, hashed: str) -> None:
    """Give a user the password with this hash, in place of an earlier one."""
    session.merge(
        Password(user_id=user.id, hash=hashed, changed_at=utc_now(), n_failures=0, failed_at=None)
    )


def pause_after(n_failures: int) -> timedelta:
    """How long no attempt is taken after so many failures in a row."""
    if n_failures < FREE_FAILURES:
        return timedelta(0)
    doublings = min(n_failures - FREE_FAILURES, 20)
    return min(FIRST_PAUSE * (1 << doublings), LONGEST_PAUSE)


@retried
def _counted(reg: Registry, name: str) -> tuple[int, str] | None:
    """(id of the user, hash) after the attempt was counted; None if nothing can be right now."""
    if not is_name(name):
        return None
    with reg.db.read() as session:
        user_id = _user_id_of(session, name)
    with reg.db.write_beside(f"password {user_id}") as session:
        row = None if user_id is None else session.get(Password, user_id)
        if row is None or _is_paused(row, utc_now()):
            return None
        if row.failed_at is not None and row.failed_at < utc_now() - _FORGOTTEN:
            row.n_failures = 0
        row.n_failures += 1
        row.failed_at = utc_now()
        if row.n_failures == FREE_FAILURES:
            audit.append(
                session, ANONYMOUS, "password.guessed", name, {"n_failures": row.n_failures}
            )
        return row.user_id, row.hash


@retried
def _note_success(reg: Registry, user_id: int, hashed: str, password: str) -> None:
    again = hash_password(password) if is_outdated(hashed) else hashed
    with reg.db.write_beside(f"password {user_id}") as session:
        row = session.get(Password, user_id)
        if row is None or row.hash != hashed:
            raise Unauthorized(WRONG)  # it was changed meanwhile
        row.n_failures, row.failed_at, row.hash = 0, None, again


def _is_paused(row: Password, now: datetime) -> bool:
    if row.failed_at is None or row.failed_at > now + CLOCK_SLACK:
        return False  # a clock that was ahead must not keep a user out until then
    return now < row.failed_at + pause_after(row.n_failures)


def _user_id_of(session: ReadSession, name: str) -> int | None:
    return session.scalar(select(User.id).where(User.name == name))

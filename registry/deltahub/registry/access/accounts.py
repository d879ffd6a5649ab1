"""Accounts of users: what they are, and how an operator makes, disables and removes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import delete, func, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_operator
from deltahub.registry.access.login import invitations, sessions
from deltahub.registry.access.users import add_user, user_named
from deltahub.registry.db.models import Landing, Membership, Namespace, Repository, User, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.logins import Password
from deltahub.registry.errors import Conflict
from deltahub.registry.names import is_name, validate_name
from deltahub.registry.registry import Registry

_NAMED: Final = 3
_ACTIVE: Final = ("queued", "running")


@dataclass(frozen=True)
class Profile:
    """What the hub knows of a user."""

    name: str
    is_admin: bool
    created_at: datetime
    password_set_at: datetime | None


def profile_of(reg: Registry, caller: Caller) -> Profile:
    """The caller's own account."""
    with reg.db.read() as session:
        user = session.get_one(User, caller.user_id)
        password = session.get(Password, user.id)
        changed_at = None if password is None else password.changed_at
        return Profile(user.name, user.is_admin, user.created_at, changed_at)


@dataclass(frozen=True)
class Account:
    """A user, as administrators see them."""

    name: str
    is_admin: bool
    created_at: datetime
    disabled_at: datetime | None
    has_password: bool


def list_accounts(
    reg: Registry, caller: Caller | None, *, after: str = "", limit: int = 100
) -> Sequence[Account]:
    """Up to `limit` users whose names come after `after`, for administrators of the hub."""
    require_operator(caller, by_shell=False)
    query = (
        select(User, Password.user_id)
        .outerjoin(Password, Password.user_id == User.id)
        .order_by(User.name)
        .limit(limit)
    )
    if is_name(after):
        query = query.where(User.name > after)
    with reg.db.read() as session:
        return [
            Account(user.name, user.is_admin, user.created_at, user.disabled_at, found is not None)
            for user, found in session.execute(query)
        ]


def create_invited(
    reg: Registry, caller: Caller | None, name: str, *, is_admin: bool, by_shell: bool
) -> str:
    """Make a user; the secret of the invitation by which they set a password.

    InvalidName, NameTaken, Forbidden. by_shell: as for invitations.invite().
    """
    require_operator(caller, by_shell=by_shell)
    validate_name(name, "user")
    with reg.db.write() as session:
        user = add_user(session, name, is_admin=is_admin, by=caller, may_take_over=True)
        return invitations.add_invitation(session, caller, user)


def disable(reg: Registry, caller: Caller | None, name: str, *, by_shell: bool) -> None:
    """Let a user do nothing any more, until enable(): tokens, sessions and links stop at once.

    Models stay as they are. NotFound, Forbidden; Conflict for the last administrator.
    """
    require_operator(caller, by_shell=by_shell)
    with reg.db.write() as session:
        user = user_named(session, name)
        if user.disabled_at is not None:
            return
        _require_other_administrator(session, user)
        user.disabled_at = utc_now()
        sessions.end_all(session, user.id)
        invitations.end_all(session, user.id)
        audit.append(session, caller, "user.disable", user.name)


def enable(reg: Registry, caller: Caller | None, name: str, *, by_shell: bool) -> None:
    """Let a disabled user act again: tokens and the password work as before, sessions are gone."""
    require_operator(caller, by_shell=by_shell)
    with reg.db.write() as session:
        user = user_named(session, name)
        if user.disabled_at is None:
            return
        user.disabled_at = None
        audit.append(session, caller, "user.enable", user.name)


def remove(reg: Registry, caller: Caller | None, name: str, *, by_shell: bool) -> Sequence[str]:
    """Delete a user; the organizations that no administrator is left in.

    Nothing but the account is lost: Conflict while the user's namespace has repositories, or while
    jobs or uploads of the user are under way. The name stays reserved, so that nobody else gets
    what others know under it; create_user() gives it again. NotFound, Forbidden.
    """
    require_operator(caller, by_shell=by_shell)
    with reg.db.write() as session:
        user = user_named(session, name)
        _require_other_administrator(session, user)
        _require_nothing_left(session, user)
        bereft = _only_administrator_of(session, user)
        # The namespace stays without a member: see above.
        session.execute(delete(User).where(User.id == user.id))
        audit.append(session, caller, "user.remove", name, {"without_administrator": bereft})
        return bereft


def _require_other_administrator(session: ReadSession, user: User) -> None:
    if not user.is_admin:
        return
    others = select(func.count()).where(
        User.is_admin, User.id != user.id, User.disabled_at.is_(None)
    )
    if not session.scalar(others):
        raise Conflict(
            f"{user.name} is the hub's last administrator: `deltahub user add NAME --admin` makes"
            " another first"
        )


def _require_nothing_left(session: ReadSession, user: User) -> None:
    own = (
        select(Repository.name)
        .join(Namespace, Namespace.id == Repository.namespace_id)
        .where(Namespace.name == user.name)
    )
    n = session.scalar(select(func.count()).select_from(own.subquery())) or 0
    if n:
        shown = [
            f"{user.name}/{each}"
            for each in session.scalars(own.order_by(Repository.name).limit(_NAMED))
        ]
        more = f" and {n - _NAMED} more" if n > _NAMED else ""
        raise Conflict(
            f"the namespace {user.name} has {', '.join(shown)}{more}: move them to another"
            f" namespace or delete them first; `deltahub user disable {user.name}` ends all access"
            " meanwhile"
        )
    n = (
        session.scalar(select(func.count()).where(Job.user_id == user.id, Job.state.in_(_ACTIVE)))
        or 0
    )
    if n:
        raise Conflict(f"{n} jobs of {user.name} are not finished: wait for them, or cancel them")
    n = session.scalar(select(func.count()).where(Landing.user_id == user.id)) or 0
    if n:
        raise Conflict(
            f"the hub still has {n} uploads of {user.name}: it stores those that models need within"
            " minutes, and `deltahub gc --apply` drops the others after a day;"
            f" `deltahub user disable {user.name}` ends all access meanwhile"
        )


def _only_administrator_of(session: WriteSession, user: User) -> list[str]:
    administered = (
        select(Membership.namespace_id)
        .join(Namespace, Namespace.id == Membership.namespace_id)
        .where(Namespace.kind == "organization", Membership.role == "admin")
        .group_by(Membership.namespace_id)
        .having(func.count() == 1)
    )
    query = (
        select(Namespace.name)
        .join(Membership, Membership.namespace_id == Namespace.id)
        .where(
            Membership.user_id == user.id,
            Membership.role == "admin",
            Namespace.id.in_(administered),
        )
        .order_by(Namespace.name)
    )
    return list(session.scalars(query))

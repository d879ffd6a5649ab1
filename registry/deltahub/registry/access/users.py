"""Users and namespaces: create, list, find."""

from sqlalchemy import exists, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import ANONYMOUS, Caller
from deltahub.registry.db.expressions import ascii_lower
from deltahub.registry.db.models import Membership, Namespace, User
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import InvalidName, InvalidRequest, NameTaken, NotFound
from deltahub.registry.names import RESERVED_NAMESPACES, is_name, quoted, validate_name
from deltahub.registry.registry import Registry


def create_user(reg: Registry, name: str, *, is_admin: bool = False) -> User:
    """A new user, with a namespace of the same name; InvalidName, NameTaken.

    For operators: the name may be that of a user who was removed.
    """
    validate_name(name, "user")
    with reg.db.write() as session:
        return add_user(session, name, is_admin=is_admin, may_take_over=True)


def list_users(reg: Registry) -> list[User]:
    """All users, ordered by name."""
    with reg.db.read() as session:
        return list(session.scalars(select(User).order_by(User.name)))


def user_named(session: ReadSession, name: str) -> User:
    """The user of this name; NotFound."""
    user = find_user(session, name)
    if user is None:
        raise NotFound(f"there is no user {quoted(name)}; `deltahub user list` shows them")
    return user


def find_user(session: ReadSession, name: str) -> User | None:
    """The user of this name."""
    return session.scalar(select(User).where(User.name == name)) if is_name(name) else None


def add_user(
    session: WriteSession,
    name: str,
    *,
    is_admin: bool,
    by: Caller | None = ANONYMOUS,
    may_take_over: bool = False,
) -> User:
    """may_take_over: the name may be reserved, because a user who had it was removed."""
    namespace = _reserved(session, name) if may_take_over else None
    namespace = namespace or add_namespace(session, name, "user")
    user = User(name=name, is_admin=is_admin)
    session.add(user)
    session.flush()
    session.add(Membership(namespace_id=namespace.id, user_id=user.id, role="admin"))
    audit.append(session, by, "user.create", name, {"is_admin": is_admin})
    return user


def _reserved(session: ReadSession, name: str) -> Namespace | None:
    """The namespace of a user of this name who was removed."""
    query = select(Namespace).where(
        Namespace.name == name,
        Namespace.kind == "user",
        ~exists().where(User.name == Namespace.name),
    )
    return session.scalar(query)


def taken_by(session: ReadSession, name: str) -> str | None:
    """The user or organization whose name equals this name, ignoring case; None if it is free."""
    same = ascii_lower(Namespace.name) == name.lower()
    exact_first = (Namespace.name != name, Namespace.name)
    return session.scalar(select(Namespace.name).where(same).order_by(*exact_first).limit(1))


def add_namespace(session: WriteSession, name: str, kind: str) -> Namespace:
    if name.lower() in RESERVED_NAMESPACES:
        raise InvalidName(f"{quoted(name)} is a word of this hub's own addresses; choose another")
    taken = taken_by(session, name)
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


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidRequest(f"{quoted(value)} is no {what}: one of {', '.join(choices)}")

"""Organizations: namespaces that several users share, each with a role."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args

from sqlalchemy import delete, func, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, Role, require_writer
from deltahub.registry.access.permissions import namespace_role
from deltahub.registry.access.repositories import find_namespace
from deltahub.registry.access.users import (
    add_namespace,
    check_choice,
    find_user,
    user_named,
)
from deltahub.registry.db.models import Membership, Namespace, User
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import Conflict, Forbidden, NotFound
from deltahub.registry.names import is_name, quoted, validate_name
from deltahub.registry.registry import Registry

# That one list of members holds.
MOST_MEMBERS: Final = 1000


@dataclass(frozen=True)
class OrganizationInfo:
    """An organization, and the role of each member by user name."""

    name: str
    members: Mapping[str, str]


def create_organization(reg: Registry, name: str) -> Namespace:
    """A new namespace that users may become members of; InvalidName, NameTaken."""
    validate_name(name, "organization")
    with reg.db.write() as session:
        namespace = add_namespace(session, name, "organization")
        audit.append(session, None, "organization.create", name)
        return namespace


def add_member(reg: Registry, organization: str, user_name: str, role: Role) -> None:
    """Give a user a role in an organization. It replaces any earlier role."""
    check_choice("role", role, get_args(Role))
    with reg.db.write() as session:
        namespace = _organization_named(session, organization)
        user = user_named(session, user_name)
        session.merge(Membership(namespace_id=namespace.id, user_id=user.id, role=role))
        audit.append(
            session, None, "organization.member", organization, {"user": user.name, "role": role}
        )


def remove_member(reg: Registry, organization: str, user_name: str) -> None:
    """Remove a user from an organization; NotFound, also if the user is not a member."""
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
    """All organizations with their members, ordered by name."""
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
    """Namespace name -> role, for the namespaces that the caller is a member of."""
    query = (
        select(Namespace.name, Membership.role)
        .join(Membership, Membership.namespace_id == Namespace.id)
        .where(Membership.user_id == caller.user_id)
        .order_by(Namespace.name)
    )
    with reg.db.read() as session:
        return {name: role for name, role in session.execute(query)}


def create_own(reg: Registry, caller: Caller, name: str) -> Namespace:
    """A new organization whose administrator the caller is.

    Forbidden if the caller administers as many as the hub lets one user have. InvalidName,
    NameTaken.
    """
    require_writer(caller)
    validate_name(name, "organization")
    most = reg.settings.max_organizations
    with reg.db.write() as session:
        n = session.scalar(
            select(func.count())
            .select_from(Membership)
            .join(Namespace, Namespace.id == Membership.namespace_id)
            .where(
                Namespace.kind == "organization",
                Membership.user_id == caller.user_id,
                Membership.role == "admin",
            )
        )
        if (n or 0) >= most and not caller.is_superuser:
            raise Forbidden(
                f"{caller.name} administers {n} organizations, and may make them up to {most}: ask"
                " the hub's administrator for another"
            )
        namespace = add_namespace(session, name, "organization")
        session.add(Membership(namespace_id=namespace.id, user_id=caller.user_id, role="admin"))
        audit.append(session, caller, "organization.create", name)
        return namespace


def organization_of(
    reg: Registry, caller: Caller | None, name: str, *, after: str = "", limit: int = MOST_MEMBERS
) -> OrganizationInfo:
    """An organization with up to `limit` members whose names come after `after`.

    For its members; NotFound for all others.
    """
    with reg.db.read() as session:
        namespace, _ = _joined(session, caller, name)
        query = (
            select(User.name, Membership.role)
            .join(Membership, Membership.user_id == User.id)
            .where(Membership.namespace_id == namespace.id)
            .order_by(User.name)
            .limit(limit)
        )
        if is_name(after):
            query = query.where(User.name > after)
        members = {user: role for user, role in session.execute(query)}
        return OrganizationInfo(namespace.name, members)


def may_manage(reg: Registry, caller: Caller, name: str) -> bool:
    """Whether the caller may change the members of an organization; NotFound for strangers."""
    with reg.db.read() as session:
        _, role = _joined(session, caller, name)
        return (role == "admin" and caller.may_write) or caller.is_superuser


def give_role(reg: Registry, caller: Caller, organization: str, user_name: str, role: Role) -> None:
    """add_member() by an administrator of the organization, who may not give up the last such role.

    NotFound for callers who are no members; Forbidden, Conflict.
    """
    check_choice("role", role, get_args(Role))
    with reg.db.write() as session:
        namespace = _administered(session, caller, organization)
        user = find_user(session, user_name)
        if user is None:
            raise NotFound(f"there is no user {quoted(user_name)}")
        if role != "admin":
            _require_other_admin(session, caller, namespace, user.id)
        session.merge(Membership(namespace_id=namespace.id, user_id=user.id, role=role))
        detail = {"user": user.name, "role": role}
        audit.append(session, caller, "organization.member", organization, detail)


def take_role(reg: Registry, caller: Caller, organization: str, user_name: str) -> None:
    """remove_member() by an administrator of the organization, or by the member. As give_role()."""
    with reg.db.write() as session:
        if user_name == caller.name:
            namespace, _ = _joined(session, require_writer(caller), organization)
        else:
            namespace = _administered(session, caller, organization)
        user = find_user(session, user_name)
        member = None if user is None else session.get(Membership, (namespace.id, user.id))
        if member is None:
            raise NotFound(f"{quoted(user_name)} is no member of {organization}")
        _require_other_admin(session, caller, namespace, member.user_id)
        session.delete(member)
        audit.append(session, caller, "organization.remove", organization, {"user": user_name})


def _joined(
    session: ReadSession, caller: Caller | None, name: str
) -> tuple[Namespace, Role | None]:
    """(the organization, the caller's role); NotFound unless the caller may know its members."""
    namespace = None
    if is_name(name):
        namespace = find_namespace(session, name)
    is_organization = namespace is not None and namespace.kind == "organization"
    role = None
    if namespace is not None and is_organization:
        role = namespace_role(session, caller, namespace.id)
    may_know = role is not None or (caller is not None and caller.is_superuser)
    if namespace is None or not is_organization or not may_know:
        raise NotFound(f"there is no organization {quoted(name)}, or you are no member of it")
    return namespace, role


def _administered(session: ReadSession, caller: Caller, name: str) -> Namespace:
    namespace, role = _joined(session, caller, name)
    require_writer(caller)
    if role != "admin" and not caller.is_superuser:
        raise Forbidden(
            f"{caller.name} needs the role admin in {name} to change its members; ask one of its"
            " administrators"
        )
    return namespace


def _require_other_admin(
    session: ReadSession, caller: Caller, namespace: Namespace, user_id: int
) -> None:
    """Conflict if this user is the last administrator; administrators of the hub may do that."""
    if caller.is_superuser:
        return
    admins = select(Membership.user_id).where(
        Membership.namespace_id == namespace.id, Membership.role == "admin"
    )
    if list(session.scalars(admins.limit(2))) == [user_id]:
        raise Conflict(
            f"this is the last administrator of {namespace.name}: make another member one first"
        )


def _organization_named(session: ReadSession, name: str) -> Namespace:
    namespace = find_namespace(session, name) if is_name(name) else None
    if namespace is None or namespace.kind != "organization":
        raise NotFound(
            f"there is no organization {quoted(name)}; `deltahub user org list` shows them,"
            " `deltahub user org add` makes one"
        )
    return namespace

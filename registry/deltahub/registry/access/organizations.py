"""Organizations: namespaces that several users share, each with a role."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from sqlalchemy import delete, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, Role
from deltahub.registry.access.users import add_namespace, check_choice, user_named
from deltahub.registry.db.models import Membership, Namespace, User
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import NotFound
from deltahub.registry.names import quoted, validate_name
from deltahub.registry.registry import Registry


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


def _organization_named(session: ReadSession, name: str) -> Namespace:
    namespace = session.scalar(select(Namespace).where(Namespace.name == name))
    if namespace is None or namespace.kind != "organization":
        raise NotFound(
            f"there is no organization {quoted(name)}; `deltahub user org list` shows them,"
            " `deltahub user org add` makes one"
        )
    return namespace

"""A namespace as a page shows it: whose it is, its members, and what its models use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select

from deltahub.registry.access.caller import Caller, Role
from deltahub.registry.access.permissions import namespace_role
from deltahub.registry.access.repositories import find_namespace
from deltahub.registry.db.models import Membership, User
from deltahub.registry.errors import NotFound
from deltahub.registry.names import is_name, quoted
from deltahub.registry.quotas.usage import Usage, readable_usage_of
from deltahub.registry.registry import Registry

# Members that are listed; an organization with more has more.
MOST_MEMBERS: Final = 200


@dataclass(frozen=True)
class NamespaceInfo:
    """A namespace. kind: user | organization. caller_role: None for one who is no member.

    members: user name -> role, for members and administrators; None for others. n_members: of all,
    also of those that are not listed. usage: of the models that the caller may read.
    """

    name: str
    kind: str
    caller_role: Role | None
    members: Mapping[str, str] | None
    n_members: int
    usage: Usage


def get_namespace(reg: Registry, caller: Caller | None, name: str) -> NamespaceInfo:
    """A namespace as the caller may see it; NotFound if there is none of this name."""
    with reg.db.read() as session:
        found = find_namespace(session, name) if is_name(name) else None
        if found is None:
            raise NotFound(f"there is no user or organization {quoted(name)}")
        role = namespace_role(session, caller, found.id)
        members, n_members = None, 0
        if found.kind == "organization" and (
            role is not None or (caller is not None and caller.is_superuser)
        ):
            query = (
                select(User.name, Membership.role)
                .join(Membership, Membership.user_id == User.id)
                .where(Membership.namespace_id == found.id)
                .order_by(User.name)
                .limit(MOST_MEMBERS)
            )
            members = {user: role_of for user, role_of in session.execute(query)}
            all_members = select(func.count()).where(Membership.namespace_id == found.id)
            n_members = session.scalar(all_members) or 0
        usage = readable_usage_of(session, caller, found.id)
        return NamespaceInfo(found.name, found.kind, role, members, n_members, usage)

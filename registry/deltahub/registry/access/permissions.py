"""Permission checks, all in this file. An unreadable repository behaves as an absent one."""

from sqlalchemy import ColumnElement, or_, select, true

from deltahub.registry.access.caller import Action, Caller, Role, require_writer
from deltahub.registry.db.models import Membership, Namespace, Repository
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import Forbidden, RepositoryNotFound

_RANK = {"read": 0, "write": 1, "admin": 2}


def namespace_role(session: ReadSession, caller: Caller | None, namespace_id: int) -> Role | None:
    """The caller's role in a namespace by membership, whatever the token's scope."""
    if caller is None:
        return None
    membership = session.get(Membership, (namespace_id, caller.user_id))
    if membership is None:
        return None
    for role in ("read", "write", "admin"):
        if membership.role == role:
            return role
    raise AssertionError(f"a membership has the unknown role {membership.role!r}")


def role_for(session: ReadSession, caller: Caller | None, namespace_id: int) -> Role:
    """The highest role that the caller has for readable repositories of the namespace.

    Same rules as allowed(): membership and the token's scope; `admin` for a superuser.
    """
    if caller is not None and caller.is_superuser:
        return "admin"
    role = namespace_role(session, caller, namespace_id)
    return "read" if role is None or caller is None or not caller.may_write else role


def writable_namespaces(session: ReadSession, caller: Caller, limit: int) -> list[str]:
    """Up to `limit` names of namespaces where the caller may write by membership, ordered."""
    query = (
        select(Namespace.name)
        .join(Membership, Membership.namespace_id == Namespace.id)
        .where(Membership.user_id == caller.user_id, Membership.role.in_(("write", "admin")))
        .order_by(Namespace.name)
        .limit(limit)
    )
    return list(session.scalars(query))


def allowed(
    session: ReadSession, caller: Caller | None, action: Action, repository: Repository
) -> bool:
    """Whether the caller may read, write or administer (delete, change) the repository."""
    if caller is not None and caller.is_superuser:
        return True
    if action == "read" and not repository.is_private:
        return True
    if action != "read" and (caller is None or not caller.may_write):
        return False
    role = namespace_role(session, caller, repository.namespace_id)
    return role is not None and _RANK[role] >= _RANK[action]


def require(
    session: ReadSession, caller: Caller | None, action: Action, repository: Repository
) -> None:
    """RepositoryNotFound if not readable; else Unauthorized or Forbidden if not allowed."""
    if allowed(session, caller, action, repository):
        return
    name = full_name(session, repository)
    if not allowed(session, caller, "read", repository):
        raise repository_not_found(name)
    where = f"the namespace of {name}"
    raise role_needed(session, require_writer(caller), action, repository.namespace_id, where)


def role_needed(
    session: ReadSession, caller: Caller, action: Action, namespace_id: int, where: str
) -> Forbidden:
    """The error for a caller whose role is too low. where: the namespace in words."""
    way = _way_to_role(session, namespace_id, caller.name, action)
    return Forbidden(f"{caller.name} needs the role {action} in {where} for this{way}")


def _way_to_role(session: ReadSession, namespace_id: int, user: str, role: str) -> str:
    namespace = session.get_one(Namespace, namespace_id)
    if namespace.kind != "organization":
        return f": the namespace is {namespace.name}'s own, and only an organization's is shared"
    return (
        "; an administrator of it gives it, or the hub's operator with"
        f" `deltahub user org member {namespace.name} {user} --role {role}`"
    )


def repository_not_found(name: str) -> RepositoryNotFound:
    """The same message for an absent repository and for an unreadable one."""
    return RepositoryNotFound(f"there is no repository {name[:200]}, or you may not read it")


def full_name(session: ReadSession, repository: Repository) -> str:
    """`namespace/name`."""
    namespace = session.get_one(Namespace, repository.namespace_id)
    return f"{namespace.name}/{repository.name}"


def readable_repositories(caller: Caller | None) -> ColumnElement[bool]:
    """SQL condition on Repository: the caller may read it."""
    if caller is None:
        return Repository.is_private.is_(False)
    if caller.is_superuser:
        return true()
    member_of = select(Membership.namespace_id).where(Membership.user_id == caller.user_id)
    return or_(Repository.is_private.is_(False), Repository.namespace_id.in_(member_of))

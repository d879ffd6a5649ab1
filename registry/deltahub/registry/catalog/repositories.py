"""Repositories: their names, who may see them, making and removing them."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, delete, select, update

from deltahub.registry import failpoints
from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, Role, require_writer
from deltahub.registry.access.permissions import namespace_role, role_for, writable_namespaces
from deltahub.registry.access.repositories import (
    DEFAULT_BRANCH,
    domain_of,
    find_repository,
    load_repository,
)
from deltahub.registry.db.models import Job, Namespace, Ref, Repository, Revision, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import Conflict, Forbidden, InvalidRequest, RepositoryExists
from deltahub.registry.jobs import queue
from deltahub.registry.names import quoted, split_name
from deltahub.registry.registry import Registry

ROLES = ("base", "finetune", "adapter", "merge", "export")
# A message does not list more namespaces than that.
_MOST_NAMED = 10


@dataclass(frozen=True)
class RepositoryInfo:
    """A repository as shown; `head` is the commit of the branch main, None while empty.

    role: what it holds, one of ROLES, None where nobody has said. caller_role: what the caller may
    do with it, in the words of a namespace's members.
    """

    id: int
    name: str  # namespace/name
    is_private: bool
    role: str | None
    created_at: datetime
    head: str | None
    caller_role: Role


def create_repository(
    reg: Registry,
    caller: Caller | None,
    name: str,
    *,
    private: bool = False,
    role: str | None = None,
) -> RepositoryInfo:
    """A new, empty repository in a namespace where the caller may write.

    Forbidden also when there is no such namespace; RepositoryExists, InvalidName.
    """
    with reg.db.write() as session:
        return add_repository(session, caller, name, private=private, role=role)


def add_repository(
    session: WriteSession,
    caller: Caller | None,
    name: str,
    *,
    private: bool = False,
    role: str | None = None,
) -> RepositoryInfo:
    """As create_repository, in a transaction that does more."""
    namespace = _free_namespace(session, caller, name)
    return _create(session, caller, namespace, name, private=private, role=role)


def check_creatable(reg: Registry, caller: Caller | None, name: str) -> None:
    """What create_repository would refuse now."""
    with reg.db.read() as session:
        _free_namespace(session, caller, name)


def get_repository(reg: Registry, caller: Caller | None, name: str) -> RepositoryInfo:
    """The repository, if the caller may read it; else RepositoryNotFound."""
    with reg.db.read() as session:
        return _info(session, caller, load_repository(session, caller, name))


def delete_repository(reg: Registry, caller: Caller | None, name: str) -> None:
    """Remove the names: repository, refs, revisions and entries, in one transaction.

    Files and tensors stay until garbage collection finds that nothing needs them. Its jobs that
    have not begun are cancelled, running ones are asked to stop.
    """
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "admin")
        of_it = update(Job).where(Job.repository_id == repository.id)
        session.execute(
            of_it.where(Job.state == "queued").values(**queue.DELETED, finished_at=utc_now())
        )
        session.execute(of_it.where(Job.state == "running").values(is_cancel_asked=True))
        # The database removes what hangs on it (ON DELETE CASCADE).
        session.execute(delete(Repository).where(Repository.id == repository.id))
        audit.append(session, caller, "repository.delete", name)
        failpoints.reached("repositories.delete.before_commit")


def move_repository(reg: Registry, caller: Caller | None, name: str, new_name: str) -> None:
    """Give a repository another name, in this namespace or another where the caller may write.

    RepositoryExists; Conflict for a private one that would leave its namespace, with which its
    data would have to go.
    """
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "admin")
        namespace = _writable_namespace(session, require_writer(caller), new_name)
        if find_repository(session, new_name) is not None:
            raise RepositoryExists(f"{new_name} exists already")
        if repository.is_private and namespace.id != repository.namespace_id:
            raise Conflict(
                f"{name} is private, and private data stays in its namespace: push it anew to"
                f" {new_name}, then delete {name}"
            )
        repository.namespace_id = namespace.id
        repository.name = split_name(new_name)[1]
        audit.append(session, caller, "repository.move", name, {"to": new_name})


def make_private(reg: Registry, caller: Caller | None, name: str) -> None:
    """Nobody but members of its namespace may read the repository from now on.

    What comes later is kept in the namespace's own domain; what others have copied stays theirs.
    """
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "admin")
        if not repository.is_private:
            repository.is_private = True
            repository.domain_id = domain_of(session, repository.namespace_id, private=True).id
            audit.append(session, caller, "repository.make_private", name)


def _writable_namespace(session: ReadSession, caller: Caller, name: str) -> Namespace:
    namespace_name, _ = split_name(name)
    namespace = session.scalar(select(Namespace).where(Namespace.name == namespace_name))
    if namespace is not None and (
        caller.is_superuser or namespace_role(session, caller, namespace.id) in ("write", "admin")
    ):
        return namespace
    where = ", ".join(writable_namespaces(session, caller, _MOST_NAMED)) or "no namespace"
    raise Forbidden(
        f"{caller.name} may not create repositories in {quoted(namespace_name)}, or there is no"
        f" such namespace; {caller.name} may in: {where}"
    )


def _free_namespace(session: ReadSession, caller: Caller | None, name: str) -> Namespace:
    namespace = _writable_namespace(session, require_writer(caller), name)
    if find_repository(session, name) is not None:
        raise RepositoryExists(f"{name} exists already")
    return namespace


def _create(
    session: WriteSession,
    caller: Caller | None,
    namespace: Namespace,
    name: str,
    *,
    private: bool,
    role: str | None,
) -> RepositoryInfo:
    if role is not None and role not in ROLES:
        raise InvalidRequest(f"{quoted(role)} is no role: one of {', '.join(ROLES)}")
    repository = Repository(
        namespace_id=namespace.id,
        name=split_name(name)[1],
        domain_id=domain_of(session, namespace.id, private=private).id,
        is_private=private,
        role=role,
    )
    session.add(repository)
    session.flush()
    audit.append(session, caller, "repository.create", name, {"is_private": private})
    caller_role = role_for(session, caller, namespace.id)
    return as_info(repository, namespace.name, None, caller_role)


def with_heads() -> Select[Repository, str, Revision | None]:
    """Repositories, the names of their namespaces, and what main points at."""
    return (
        select(Repository, Namespace.name, Revision)
        .join(Namespace, Namespace.id == Repository.namespace_id)
        .outerjoin(
            Ref,
            (Ref.repository_id == Repository.id)
            & (Ref.kind == "branch")
            & (Ref.name == DEFAULT_BRANCH),
        )
        .outerjoin(Revision, Revision.id == Ref.revision_id)
    )


def _info(session: ReadSession, caller: Caller | None, repository: Repository) -> RepositoryInfo:
    row = session.execute(with_heads().where(Repository.id == repository.id)).one()
    return as_info(*row, role_for(session, caller, repository.namespace_id))


def as_info(
    repository: Repository, namespace: str, head: Revision | None, caller_role: Role
) -> RepositoryInfo:
    return RepositoryInfo(
        id=repository.id,
        name=f"{namespace}/{repository.name}",
        is_private=repository.is_private,
        role=repository.role,
        created_at=repository.created_at,
        head=None if head is None else head.commit,
        caller_role=caller_role,
    )

"""Creating, moving, hiding and deleting repositories."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, delete, select, update

from deltahub.registry import failpoints
from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, Role, require_writer
from deltahub.registry.access.permissions import namespace_role, role_for, writable_namespaces
from deltahub.registry.access.repositories import (
    domain_of,
    find_namespace,
    load_repository,
)
from deltahub.registry.db.expressions import ascii_lower
from deltahub.registry.db.models import (
    File,
    Namespace,
    OldName,
    Repository,
    Revision,
    utc_now,
)
from deltahub.registry.db.session import ReadSession, WriteSession, also_lock
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.db.tree_files import files_of, trees_of_repository
from deltahub.registry.errors import Conflict, Forbidden, InvalidRequest, RepositoryExists
from deltahub.registry.jobs import queue
from deltahub.registry.names import quoted, split_name
from deltahub.registry.quotas.limits import check_push, check_repository, lock_repositories
from deltahub.registry.quotas.unnamed_bases import repositories_needing
from deltahub.registry.quotas.usage import measure, usage_of_repository
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings

ROLES = ("base", "finetune", "adapter", "merge", "export")
# Namespaces that an error message lists at most.
_MAX_NAMED = 10


@dataclass(frozen=True)
class RepositoryInfo:
    """A repository as shown. head: the commit of the branch main, None if there is none.

    role: one of ROLES, None if not declared. caller_role: the caller's role in the namespace.
    """

    id: int
    name: str  # namespace/name
    is_private: bool
    role: str | None
    created_at: datetime
    head: str | None
    caller_role: Role
    downloads: int


@retried
def create_repository(
    reg: Registry,
    caller: Caller | None,
    name: str,
    *,
    private: bool = False,
    role: str | None = None,
    push_bytes: int = 0,
) -> RepositoryInfo:
    """Make an empty repository in a namespace where the caller may write.

    push_bytes: of the files that are to be pushed to it; QuotaExceeded if they are too much, so
    that no empty repository stays. Raises Forbidden, also if there is no such namespace,
    RepositoryExists and InvalidName.
    """
    with reg.db.write_beside() as session:
        made = add_repository(session, reg.settings, caller, name, private=private, role=role)
        namespace = session.get_one(Repository, made.id).namespace_id
        check_push(session, reg.settings, namespace, push_bytes)
        return made


def add_repository(
    session: WriteSession,
    settings: Settings,
    caller: Caller | None,
    name: str,
    *,
    private: bool = False,
    role: str | None = None,
) -> RepositoryInfo:
    """Do the same as create_repository inside the caller's transaction."""
    namespace = free_namespace(session, settings, caller, name)
    # No index of the database keeps two names apart that differ only in case.
    also_lock(session, f"names {namespace.id}")
    _require_free(session, name)
    lock_repositories(session, settings, namespace.id)
    return _create(session, caller, namespace, name, private=private, role=role)


def check_creatable(reg: Registry, caller: Caller | None, name: str) -> None:
    """Raise the error that create_repository would raise for this name now."""
    with reg.db.read() as session:
        free_namespace(session, reg.settings, caller, name)


def get_repository(reg: Registry, caller: Caller | None, name: str) -> RepositoryInfo:
    """The repository; RepositoryNotFound if the caller may not read it."""
    with reg.db.read() as session:
        return _info(session, caller, load_repository(session, caller, name))


def delete_repository(reg: Registry, caller: Caller | None, name: str) -> None:
    """Delete the repository with its refs, revisions and entries, in one transaction.

    This alone leaves other models that are stored as differences from it as they are: requests of
    users go through reencode.withdraw.
    """
    with reg.db.write() as session:
        remove(session, caller, load_repository(session, caller, name, "admin"), name)


def remove(
    session: WriteSession,
    caller: Caller | None,
    repository: Repository,
    name: str,
    own_job: str | None = None,
) -> None:
    """Delete the repository in the caller's transaction.

    Files and tensors stay until garbage collection. Queued jobs of the repository are cancelled,
    running jobs are asked to stop, except own_job, which deletes it.
    """
    jobs = update(Job).where(Job.repository_id == repository.id, Job.id != (own_job or ""))
    session.execute(
        jobs.where(Job.state == "queued").values(**queue.DELETED, finished_at=utc_now())
    )
    session.execute(jobs.where(Job.state == "running").values(is_cancel_asked=True))
    trees = trees_of_repository(repository.id)
    needing = repositories_needing(session, repository.id, trees)
    listed = files_of(trees)
    left = update(File).where(File.id.in_(listed)).values(left_by="repository deleted")
    session.execute(left.execution_options(synchronize_session=False))
    # A name that is free again must not lead to what had it earlier.
    _forget_old_name(session, repository.namespace_id, repository.name)
    # ON DELETE CASCADE deletes the rows that refer to it. Revisions name their trees, so go first.
    session.execute(delete(Revision).where(Revision.repository_id == repository.id))
    session.execute(delete(DroppedRevision).where(DroppedRevision.repository_id == repository.id))
    session.execute(delete(Repository).where(Repository.id == repository.id))
    for row_id in sorted(needing):
        measure(session, row_id)
    audit.append(session, caller, "repository.delete", name)
    failpoints.reached("repositories.delete.before_commit")


def move_repository(reg: Registry, caller: Caller | None, name: str, new_name: str) -> None:
    """Rename a repository, within its namespace or into another where the caller may write.

    The old name leads to it from then on, until another repository takes that name.

    Raises RepositoryExists, and Conflict for a private repository that would leave its namespace:
    private data is stored in the domain of its namespace.
    """
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "admin")
        namespace = _writable_namespace(session, require_writer(caller), new_name)
        _require_free(session, new_name, beside=repository)
        if repository.is_private and namespace.id != repository.namespace_id:
            raise Conflict(
                f"{name} is private, and private data stays in its namespace: push it anew to"
                f" {new_name}, then delete {name}"
            )
        if namespace.id != repository.namespace_id:
            check_repository(session, reg.settings, namespace.id)
            used = usage_of_repository(session, repository.id)
            check_push(session, reg.settings, namespace.id, used.logical_bytes)
        _forget_old_name(session, namespace.id, split_name(new_name)[1])
        _forget_old_name(session, repository.namespace_id, repository.name)
        session.add(
            OldName(
                namespace_id=repository.namespace_id,
                lower_name=repository.name.lower(),
                repository_id=repository.id,
            )
        )
        repository.namespace_id = namespace.id
        repository.name = split_name(new_name)[1]
        audit.append(session, caller, "repository.move", name, {"to": new_name})


def make_private(reg: Registry, caller: Caller | None, name: str) -> None:
    """Let only members of its namespace read the repository from now on.

    This alone leaves other models that are stored as differences from it as they are: requests of
    users go through reencode.withdraw.
    """
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "admin")
        if not repository.is_private:
            hide(session, caller, repository, name)


def hide(session: WriteSession, caller: Caller | None, repository: Repository, name: str) -> None:
    """Make the repository private in the caller's transaction.

    Later uploads are stored in the namespace's private domain. Copies in other repositories stay
    readable there.
    """
    repository.is_private = True
    repository.domain_id = domain_of(session, repository.namespace_id, private=True).id
    audit.append(session, caller, "repository.make_private", name)


def _writable_namespace(session: ReadSession, caller: Caller, name: str) -> Namespace:
    namespace_name, _ = split_name(name)
    namespace = find_namespace(session, namespace_name)
    if namespace is not None and (
        caller.is_superuser or namespace_role(session, caller, namespace.id) in ("write", "admin")
    ):
        return namespace
    where = ", ".join(writable_namespaces(session, caller, _MAX_NAMED)) or "no namespace"
    raise Forbidden(
        f"{caller.name} may not create repositories in {quoted(namespace_name)}, or there is no"
        f" such namespace; {caller.name} may in: {where}"
    )


def free_namespace(
    session: ReadSession, settings: Settings, caller: Caller | None, name: str
) -> Namespace:
    """The namespace, if the caller may create a repository of this name there.

    Unauthorized, Forbidden, RepositoryExists, InvalidName, QuotaExceeded.
    """
    namespace = _writable_namespace(session, require_writer(caller), name)
    _require_free(session, name)
    check_repository(session, settings, namespace.id)
    return namespace


def _require_free(session: ReadSession, name: str, beside: Repository | None = None) -> None:
    """RepositoryExists if another repository than `beside` has the name, in any spelling."""
    namespace, short = split_name(name)
    row = find_namespace(session, namespace)
    query = select(Repository.name).where(ascii_lower(Repository.name) == short.lower())
    query = query.where(Repository.namespace_id == (0 if row is None else row.id))
    if beside is not None:
        query = query.where(Repository.id != beside.id)
    taken = set(session.scalars(query))
    if row is None or not taken:
        return
    if short in taken:
        raise RepositoryExists(f"{row.name}/{short} exists already")
    raise RepositoryExists(
        f"{row.name}/{min(taken)} exists already, and {quoted(short)} differs from it only in upper"
        " and lower case: choose a name that nobody mistakes for it"
    )


def _forget_old_name(session: WriteSession, namespace_id: int, name: str) -> None:
    """Let a name lead nowhere."""
    of_name = (OldName.namespace_id == namespace_id) & (OldName.lower_name == name.lower())
    session.execute(delete(OldName).where(of_name))


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
    return as_info(repository, f"{namespace.name}/{repository.name}", None, caller_role)


def with_heads() -> Select[Repository, str, Revision | None]:
    """A query for (repository, name of its namespace, head of main or None)."""
    return (
        select(Repository, Namespace.name, Revision)
        .join(Namespace, Namespace.id == Repository.namespace_id)
        .outerjoin(Revision, Revision.id == Repository.head_id)
    )


def _info(session: ReadSession, caller: Caller | None, repository: Repository) -> RepositoryInfo:
    query = with_heads().where(Repository.id == repository.id)
    found, namespace, head = session.execute(query).one()
    role = role_for(session, caller, repository.namespace_id)
    return as_info(found, f"{namespace}/{found.name}", head, role)


def as_info(
    repository: Repository, name: str, head: Revision | None, caller_role: Role
) -> RepositoryInfo:
    return RepositoryInfo(
        id=repository.id,
        name=name,
        is_private=repository.is_private,
        role=repository.role,
        created_at=repository.created_at,
        head=None if head is None else head.commit,
        caller_role=caller_role,
        downloads=repository.downloads,
    )

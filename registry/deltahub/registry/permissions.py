"""Who may do what: the one place that decides. What may not be read behaves as absent."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from sqlalchemy import ColumnElement, Select, and_, exists, false, or_, select, true

from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    Entry,
    File,
    FileTensor,
    Hold,
    Membership,
    Namespace,
    Repository,
    Revision,
    Tensor,
    utc_now,
)
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import Forbidden, RepositoryNotFound, Unauthorized

Action = Literal["read", "write", "admin"]
Scope = Literal["read", "write", "admin"]
Role = Literal["read", "write", "admin"]

_Hash = TypeVar("_Hash", str, bytes)
_RANK = {"read": 0, "write": 1, "admin": 2}
# What a hash lookup may bind at once, far below SQLite's limit of variables.
_CHUNK = 5000


@dataclass(frozen=True)
class Caller:
    """Who asks, as a valid token says. Nobody at all is None (ANONYMOUS).

    The scope limits what the user may do by role: `read` only reads; `write` does everything that
    the roles in namespaces allow; `admin`, of a user who is an administrator, does everything.
    token_mark: names the token in what the hub signs for the caller, and is no secret; empty where
    the hub itself acts for a user.
    """

    user_id: int
    name: str
    is_admin: bool
    scope: Scope
    token_mark: str = ""

    @property
    def is_superuser(self) -> bool:
        return self.is_admin and self.scope == "admin"

    @property
    def may_write(self) -> bool:
        return self.scope != "read"


ANONYMOUS: Caller | None = None
NO_TOKEN = (
    "this needs a token: `deltahub login` stores yours; the hub's operator makes one with"
    " `deltahub user token create`"
)


def require_writer(caller: Caller | None) -> Caller:
    """The caller, if their token may change anything at all; else Unauthorized, Forbidden."""
    if caller is None:
        raise Unauthorized(NO_TOKEN)
    if not caller.may_write:
        raise Forbidden(f"the token of {caller.name} has scope read; this needs scope write")
    return caller


def namespace_role(session: ReadSession, caller: Caller | None, namespace_id: int) -> Role | None:
    """The caller's role in a namespace by membership alone."""
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
    """The most that the caller may do with the namespace's repositories, once they can be read.

    As allowed() says it: by membership and the token's scope, `admin` for a superuser.
    """
    if caller is not None and caller.is_superuser:
        return "admin"
    role = namespace_role(session, caller, namespace_id)
    return "read" if role is None or caller is None or not caller.may_write else role


def writable_namespaces(session: ReadSession, caller: Caller, limit: int) -> list[str]:
    """The first names of namespaces where the caller may write by membership."""
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
    """Nothing if allowed; RepositoryNotFound if not even readable, else Unauthorized, Forbidden."""
    if allowed(session, caller, action, repository):
        return
    name = full_name(session, repository)
    if not allowed(session, caller, "read", repository):
        raise repository_not_found(name)
    caller = require_writer(caller)
    raise Forbidden(
        f"{caller.name} needs the role {action} in the namespace of {name} for this"
        + _way_to_role(session, repository.namespace_id, caller.name, action)
    )


def _way_to_role(session: ReadSession, namespace_id: int, user: str, role: str) -> str:
    namespace = session.get_one(Namespace, namespace_id)
    if namespace.kind != "organization":
        return f": the namespace is {namespace.name}'s own, and only an organization's is shared"
    return (
        "; the hub's operator gives it with"
        f" `deltahub user org member {namespace.name} {user} --role {role}`"
    )


def repository_not_found(name: str) -> RepositoryNotFound:
    """The same words for absent and for not readable."""
    return RepositoryNotFound(f"there is no repository {name[:200]}, or you may not read it")


def full_name(session: ReadSession, repository: Repository) -> str:
    """`namespace/name`."""
    namespace = session.get_one(Namespace, repository.namespace_id)
    return f"{namespace.name}/{repository.name}"


def readable_repositories(caller: Caller | None) -> ColumnElement[bool]:
    """The condition on Repository that the caller may read it, for use in any query."""
    if caller is None:
        return Repository.is_private.is_(False)
    if caller.is_superuser:
        return true()
    member_of = select(Membership.namespace_id).where(Membership.user_id == caller.user_id)
    return or_(Repository.is_private.is_(False), Repository.namespace_id.in_(member_of))


def sharing_domains(session: ReadSession, repository: Repository) -> list[int]:
    """Domains whose tensors and files the repository may refer to: its own, then the public one."""
    domains = [repository.domain_id]
    if repository.is_private:
        public = select(Domain.id).where(Domain.key == PUBLIC_DOMAIN_KEY)
        domains += session.scalars(public).all()
    return domains


def _readable_entry(caller: Caller | None) -> Select[int]:
    """Entries of revisions of readable repositories; the caller correlates it to a file."""
    return (
        select(Entry.file_id)
        .join(Revision, Revision.id == Entry.revision_id)
        .join(Repository, Repository.id == Revision.repository_id)
        .where(readable_repositories(caller))
    )


def _held(caller: Caller | None, repository: Repository) -> ColumnElement[bool]:
    """The condition on Hold: acknowledged to this caller for this repository, not yet over."""
    if caller is None:
        return false()
    return and_(
        Hold.user_id == caller.user_id,
        Hold.repository_id == repository.id,
        Hold.expires_at > utc_now(),
    )


def readable_files(
    session: ReadSession, caller: Caller | None, repository: Repository, hashes: Collection[str]
) -> dict[str, File]:
    """SHA-256 -> committable file that the repository may refer to and the caller may know.

    Known is: an entry of a repository that the caller may read; or acknowledged to the caller for
    this repository, which is a hold on the file's recipe tensor. A file of the repository's own
    domain is preferred to a public one.
    """
    domains = sharing_domains(session, repository)
    visible = or_(
        exists(_readable_entry(caller).where(Entry.file_id == File.id)),
        exists().where(Hold.tensor_id == File.recipe_tensor_id, _held(caller, repository)),
    )
    found: dict[str, File] = {}
    for chunk in _chunks(sorted(set(hashes))):
        query = select(File).where(
            File.sha256.in_(chunk),
            File.domain_id.in_(domains),
            File.state.in_(("landed", "ingested")),
            visible,
        )
        for file in session.scalars(query):
            known = found.get(file.sha256)
            if known is None or file.domain_id == repository.domain_id:
                found[file.sha256] = file
    return found


def readable_file(
    session: ReadSession, caller: Caller | None, repository: Repository, sha256: str
) -> File | None:
    """One of readable_files."""
    return readable_files(session, caller, repository, [sha256]).get(sha256)


def readable_tensors(
    session: ReadSession,
    caller: Caller | None,
    repository: Repository,
    hashes: Collection[bytes],
) -> dict[bytes, Tensor]:
    """Of the asked tensors, those that the repository may refer to and the caller may know.

    Known is: part of a file of a repository that the caller may read; or held by the caller for
    this repository. A tensor of the repository's own domain is preferred to a public one.
    """
    domains = sharing_domains(session, repository)
    visible = or_(
        exists(
            _readable_entry(caller)
            .join(FileTensor, FileTensor.file_id == Entry.file_id)
            .where(FileTensor.tensor_id == Tensor.id)
        ),
        exists().where(Hold.tensor_id == Tensor.id, _held(caller, repository)),
    )
    found: dict[bytes, Tensor] = {}
    for chunk in _chunks(sorted(set(hashes))):
        query = select(Tensor).where(Tensor.hash.in_(chunk), Tensor.domain_id.in_(domains), visible)
        for tensor in session.scalars(query):
            known = found.get(tensor.hash)
            if known is None or tensor.domain_id == repository.domain_id:
                found[tensor.hash] = tensor
    return found


def _chunks(hashes: Sequence[_Hash]) -> list[Sequence[_Hash]]:
    return [hashes[i : i + _CHUNK] for i in range(0, len(hashes), _CHUNK)]

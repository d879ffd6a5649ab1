"""Which files and tensors a caller may read, and so may name by hash."""

from collections.abc import Collection, Sequence
from typing import TypeVar

from sqlalchemy import ColumnElement, Select, and_, exists, false, or_, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    Entry,
    File,
    FileTensor,
    Hold,
    Repository,
    Revision,
    Tensor,
    utc_now,
)
from deltahub.registry.db.session import ReadSession

_Hash = TypeVar("_Hash", str, bytes)


# What a hash lookup may bind at once, far below SQLite's limit of variables.
_CHUNK = 5000


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

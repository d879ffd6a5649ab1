"""The files and tensors that a caller may read, and therefore may refer to by hash."""

from collections.abc import Collection, Sequence
from typing import TypeVar

from sqlalchemy import ColumnElement, Select, and_, exists, false, or_, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    File,
    FileTensor,
    Hold,
    Repository,
    Revision,
    Tensor,
    utc_now,
)
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry

_Hash = TypeVar("_Hash", str, bytes, int)


# States of a file of which the hub has all bytes, so that a commit may name it.
COMMITTABLE = ("landed", "ingested")
# Hashes in one query; SQLite's limit of bound variables is 32,766.
_CHUNK = 5000


def sharing_domains(session: ReadSession, repository: Repository) -> list[int]:
    """Domains whose files and tensors the repository may refer to: its own first, then public."""
    domains = [repository.domain_id]
    if repository.is_private:
        public = select(Domain.id).where(Domain.key == PUBLIC_DOMAIN_KEY)
        domains += session.scalars(public).all()
    return domains


def _readable_entry(caller: Caller | None) -> Select[int]:
    """File ids of entries in readable repositories, for a query to restrict to one file."""
    return (
        select(Entry.file_id)
        .join(Revision, Revision.id == Entry.revision_id)
        .join(Repository, Repository.id == Revision.repository_id)
        .where(readable_repositories(caller))
    )


def _held(caller: Caller | None, repository: Repository) -> ColumnElement[bool]:
    """SQL condition on Hold: of this caller for this repository, and not expired."""
    if caller is None:
        return false()
    return and_(
        Hold.user_id == caller.user_id,
        Hold.repository_id == repository.id,
        Hold.expires_at > utc_now(),
    )


def readable_files(
    session: ReadSession,
    caller: Caller | None,
    repository: Repository,
    hashes: Collection[str],
    *,
    states: Collection[str] = COMMITTABLE,
) -> dict[str, File]:
    """SHA-256 -> committable file that the repository may refer to and the caller may read.

    The caller may read a file that is an entry of a readable repository, or whose recipe tensor
    has a hold of the caller for this repository. A file of the repository's own domain is
    preferred to a public one. states: of the files to find.
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
            File.state.in_(states),
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
    """readable_files for one hash; None if there is no such file."""
    return readable_files(session, caller, repository, [sha256]).get(sha256)


def listed_file(
    session: ReadSession, caller: Caller | None, repository: Repository, sha256: str
) -> File | None:
    """The same for a reader, who gets the error data_lost for a file that is lost."""
    return readable_file(session, caller, repository, sha256) or readable_files(
        session, caller, repository, [sha256], states=("lost",)
    ).get(sha256)


def readable_tensors(
    session: ReadSession,
    caller: Caller | None,
    repository: Repository,
    hashes: Collection[bytes],
) -> dict[bytes, Tensor]:
    """Hash -> tensor that the repository may refer to and the caller may read; none that is lost.

    The caller may read a tensor that is part of a file of a readable repository, or that has a hold
    of the caller for this repository. A tensor of the repository's own domain is preferred to a
    public one.
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
        query = select(Tensor).where(
            Tensor.hash.in_(chunk), Tensor.domain_id.in_(domains), Tensor.lost.is_(None), visible
        )
        for tensor in session.scalars(query):
            known = found.get(tensor.hash)
            if known is None or tensor.domain_id == repository.domain_id:
                found[tensor.hash] = tensor
    return found


def unreadable_tensors(
    session: ReadSession, caller: Caller | None, tensors: Collection[int]
) -> set[int]:
    """The subset of these rows that no file of a repository that the caller may read needs."""
    is_readable = exists(
        _readable_entry(caller)
        .join(FileTensor, FileTensor.file_id == Entry.file_id)
        .where(FileTensor.tensor_id == Tensor.id)
    )
    found: set[int] = set()
    for chunk in _chunks(sorted(set(tensors))):
        found.update(session.scalars(select(Tensor.id).where(Tensor.id.in_(chunk), ~is_readable)))
    return found


def _chunks(hashes: Sequence[_Hash]) -> list[Sequence[_Hash]]:
    return [hashes[i : i + _CHUNK] for i in range(0, len(hashes), _CHUNK)]

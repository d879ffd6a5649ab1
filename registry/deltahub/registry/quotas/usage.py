"""What a repository uses: measured after each ingest, and when revisions are dropped."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.orm import aliased

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, FileTensor, Frame, Repository
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.comparisons import AdapterKit
from deltahub.registry.db.tables.quotas import RepositoryUsage
from deltahub.registry.db.tables.trees import Entry, TreeNode
from deltahub.registry.db.tree_files import files_of, is_listed_by, trees_of_repository
from deltahub.registry.quotas.unnamed_bases import unnamed_bases


@dataclass(frozen=True)
class Usage:
    """What a namespace uses.

    logical_bytes: of all files of all revisions of each repository, each once, as they were pushed.
    stored_bytes: what that takes in the object store, with what its differences need though no
    revision names it any more. What several repositories share counts with the oldest of them. The
    kit of an adapter counts too, though it lies in the database.
    """

    repositories: int
    stored_bytes: int
    logical_bytes: int


def usage_of(session: ReadSession, namespace_id: int) -> Usage:
    """What all repositories of a namespace use, as last measured."""
    row = session.execute(
        select(
            func.count(Repository.id),
            total(RepositoryUsage.stored_bytes),
            total(RepositoryUsage.logical_bytes),
        )
        .outerjoin(RepositoryUsage, RepositoryUsage.repository_id == Repository.id)
        .where(Repository.namespace_id == namespace_id)
    ).one()
    return Usage(*row)


def readable_usage_of(session: ReadSession, caller: Caller | None, namespace_id: int) -> Usage:
    """What those repositories of a namespace use that the caller may read."""
    row = session.execute(
        select(
            func.count(Repository.id),
            total(RepositoryUsage.stored_bytes),
            total(RepositoryUsage.logical_bytes),
        )
        .outerjoin(RepositoryUsage, RepositoryUsage.repository_id == Repository.id)
        .where(Repository.namespace_id == namespace_id, readable_repositories(caller))
    ).one()
    return Usage(*row)


def usage_of_repository(session: ReadSession, repository_id: int) -> Usage:
    """What one repository uses, as last measured."""
    row = session.get(RepositoryUsage, repository_id)
    return Usage(1, 0, 0) if row is None else Usage(1, row.stored_bytes, row.logical_bytes)


def usages_of(session: ReadSession, repositories: Iterable[int]) -> dict[int, Usage]:
    """Repository -> what it uses, for those that were measured."""
    found: dict[int, Usage] = {}
    for batch in batches(repositories):
        query = select(RepositoryUsage).where(RepositoryUsage.repository_id.in_(batch))
        for row in session.scalars(query):
            found[row.repository_id] = Usage(1, row.stored_bytes, row.logical_bytes)
    return found


def new_bytes(session: ReadSession, repository_id: int, sizes: Mapping[str, int]) -> int:
    """Bytes of those files, SHA-256 -> size, that no revision of the repository lists."""
    known: set[str] = set()
    for batch in batches(sizes):
        listed = select(File.sha256).where(File.sha256.in_(batch), is_listed_by(repository_id))
        known.update(session.scalars(listed))
    return sum(size for sha256, size in sizes.items() if sha256 not in known)


def add_logical(session: WriteSession, repository_id: int, n_bytes: int) -> None:
    """Count the files of a commit, before the next measurement."""
    _place_in_lists(session, repository_id, logical_bytes=Repository.logical_bytes + n_bytes)
    if session.get(RepositoryUsage, repository_id) is None:
        session.add(
            RepositoryUsage(repository_id=repository_id, stored_bytes=0, logical_bytes=n_bytes)
        )
        return
    session.execute(
        update(RepositoryUsage)
        .where(RepositoryUsage.repository_id == repository_id)
        .values(logical_bytes=RepositoryUsage.logical_bytes + n_bytes)
    )


def measure(session: WriteSession, repository_id: int) -> None:
    """Measure a repository again. The database reads all entries of its revisions."""
    files = files_of(trees_of_repository(repository_id))
    logical = session.scalar(select(total(File.size)).where(File.id.in_(files))) or 0
    landed = session.scalar(
        select(total(File.size)).where(File.id.in_(files), File.state == "landed")
    )
    tensors = select(FileTensor.tensor_id).where(FileTensor.file_id.in_(files)).distinct()
    frames = select(total(Frame.length)).where(
        Frame.tensor_id.in_(tensors), ~_is_in_older(repository_id)
    )
    stored = (landed or 0) + (session.scalar(frames) or 0)
    for batch in batches(sorted(unnamed_bases(session, repository_id, tensors))):
        bases = select(total(Frame.length)).where(Frame.tensor_id.in_(batch))
        stored += session.scalar(bases) or 0
    kit = select(AdapterKit.size).where(AdapterKit.repository_id == repository_id)
    stored += session.scalar(kit) or 0
    session.merge(
        RepositoryUsage(repository_id=repository_id, stored_bytes=stored, logical_bytes=logical)
    )
    saved = max(logical - stored, 0)
    _place_in_lists(session, repository_id, logical_bytes=logical, saved_bytes=saved)


def _place_in_lists(session: WriteSession, repository_id: int, **values: Any) -> None:
    """Give the repository its place in lists by size and by what is saved."""
    session.execute(update(Repository).where(Repository.id == repository_id).values(**values))


def _is_in_older(repository_id: int) -> ColumnElement[bool]:
    """SQL condition on Frame: an older repository names its tensor."""
    naming = aliased(FileTensor)
    return exists(
        select(naming.tensor_id)
        .join(Entry, Entry.file_id == naming.file_id)
        .join(TreeNode, TreeNode.id == Entry.node_id)
        .where(naming.tensor_id == Frame.tensor_id, TreeNode.repository_id < repository_id)
    )

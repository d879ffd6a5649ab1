"""Revisions that hold a tensor: a bounded search, because a million may hold a popular one."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from deltahub.registry.db.models import File, FileTensor, Repository, Revision
from deltahub.registry.db.tables.trees import Entry

MAX_HOLDERS = 64


@dataclass(frozen=True, slots=True)
class Holder:
    """A revision with an ingested file that holds the tensor."""

    tensor_id: int
    revision_id: int
    repository_id: int
    domain_id: int


def find_holders(
    session: Session,
    tensors: Iterable[int],
    domains: Collection[int],
    *,
    exclude_repository: int | None = None,
) -> list[Holder]:
    """For each tensor, the revisions in these domains that held it first, at most 64.

    Cost: a short index walk for each tensor, however many revisions hold it.
    """
    return [
        Holder(tensor, *row)
        for tensor in tensors
        for row in session.execute(
            select(Revision.id, Revision.repository_id, Repository.domain_id)
            .select_from(FileTensor)
            .join(File, File.id == FileTensor.file_id)
            .join(Entry, Entry.file_id == File.id)
            .join(Revision, Revision.id == Entry.revision_id)
            .join(Repository, Repository.id == Revision.repository_id)
            .where(
                FileTensor.tensor_id == tensor,
                File.state == "ingested",
                Repository.domain_id.in_(domains),
                Repository.id != (exclude_repository or 0),
            )
            # The index gives the order of arrival. ORDER BY would read all holders.
            .limit(MAX_HOLDERS)
        )
    ]

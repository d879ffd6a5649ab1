"""Finds the deltas whose readers could compute tensors of a repository that they may not read.

The question is asked before a repository is made private or deleted. Then its public tensors stay
readable only through other repositories that name them. A delta of such a tensor has to be stored
without it first, if somebody outside the repository's namespace may read the delta.
"""

from collections.abc import Collection, Iterator

from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, or_, select
from sqlalchemy.orm import aliased

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    FileTensor,
    Hold,
    Repository,
    Revision,
    Tensor,
    TensorBase,
    utc_now,
)
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.jobs import queue
from deltahub.registry.reencode.survey import tensors_of

# The repository that names the delta, and one that names the base.
_Reader = aliased(Repository)
_Holder = aliased(Repository)


def find_dependents(session: ReadSession, repository: Repository) -> set[int]:
    """Rows of the deltas that must be stored without tensors of the repository, before it leaves.

    A revision outside names them, or a client or a job holds them for a repository outside. Outside
    are public repositories and those of other namespaces. Deltas of deltas count too, if nobody
    outside may read the deltas between.
    """
    return {tensor for found in _levels(session, repository) for tensor in found}


def has_dependents(session: ReadSession, repository: Repository) -> bool:
    """Whether find_dependents finds any."""
    return any(_levels(session, repository))


def count_models(
    session: ReadSession, caller: Caller, repository: Repository, dependents: Collection[int]
) -> int:
    """The number of repositories outside that name some of these tensors.

    Only of those that the caller may read, who must not learn of others' private models.
    """
    found: set[int] = set()
    for batch in batches(sorted(dependents)):
        naming = _names(FileTensor.tensor_id.in_(batch)).where(_is_outside(repository))
        query = select(Repository.id).where(
            Repository.id.in_(naming.with_only_columns(_Reader.id)), readable_repositories(caller)
        )
        found.update(session.scalars(query))
    return len(found)


def revision_outside(
    session: ReadSession, repository: Repository, tensor_id: int, domain_id: int
) -> int | None:
    """The newest revision outside that names the tensor in this domain; None without one."""
    return session.scalar(
        _names(FileTensor.tensor_id == tensor_id)
        .with_only_columns(func.max(Revision.id))
        .where(_is_outside(repository), _Reader.domain_id == domain_id)
    )


def end_holds(session: WriteSession, repository: Repository) -> None:
    """End the holds of clients outside on the tensors that they may read no longer.

    A hold would let them commit the tensor, and so read it, after the repository has left.
    """
    outside = select(_Reader.id).where(_is_outside(repository))
    leaving = select(Tensor.id).where(_is_leaving_tensor(repository))
    session.execute(
        delete(Hold)
        .where(Hold.repository_id.in_(outside), Hold.tensor_id.in_(leaving))
        .execution_options(synchronize_session=False)
    )


def _levels(session: ReadSession, repository: Repository) -> Iterator[set[int]]:
    """Dependents of the repository's own tensors, then those of tensors that depend on them."""
    base_ids = select(TensorBase.base_id).join(Tensor, Tensor.id == TensorBase.base_id)
    level = set(session.scalars(base_ids.where(_is_leaving_tensor(repository)).distinct()))
    seen = set(level)
    while level:
        inside: set[int] = set()
        for batch in batches(sorted(level)):
            must_move = _is_readable_outside(repository)
            # A lost delta cannot be stored again until somebody pushes it, and then gets other
            # bases. Nobody outside gets what is left of its frames.
            is_whole = exists().where(Tensor.id == TensorBase.tensor_id, Tensor.lost.is_(None))
            edges = session.execute(
                select(TensorBase.tensor_id, must_move).where(
                    TensorBase.base_id.in_(batch), is_whole
                )
            ).all()
            found = {tensor for tensor, is_outside in edges if is_outside}
            if found:
                yield found
            inside.update(tensor for tensor, _ in edges)
            seen |= found
        level = _unnamed_outside(session, repository, inside - seen)
        seen |= level


def _is_leaving_tensor(repository: Repository) -> ColumnElement[bool]:
    """SQL condition on Tensor: public data of the repository that no other public one names."""
    return and_(Tensor.id.in_(tensors_of(repository.id)), _is_only_public_here(repository))


def _is_only_public_here(repository: Repository) -> ColumnElement[bool]:
    public = select(Domain.id).where(Domain.key == PUBLIC_DOMAIN_KEY)
    return and_(Tensor.domain_id.in_(public), ~_is_named_publicly(repository))


def _unnamed_outside(
    session: ReadSession, repository: Repository, tensors: Collection[int]
) -> set[int]:
    """The subset that is public data and that no other public repository names."""
    found: set[int] = set()
    for batch in batches(sorted(tensors)):
        query = select(Tensor.id).where(Tensor.id.in_(batch), _is_only_public_here(repository))
        found.update(session.scalars(query))
    return found


def _is_named_publicly(repository: Repository) -> ColumnElement[bool]:
    """SQL condition on Tensor: a public repository other than this one names it."""
    query = _names(FileTensor.tensor_id == Tensor.id)
    return exists(query.where(_Reader.is_private.is_(False), _Reader.id != repository.id))


def _is_readable_outside(repository: Repository) -> ColumnElement[bool]:
    """SQL condition on TensorBase: readers outside may read the delta, but not the base."""
    base = _names(FileTensor.tensor_id == TensorBase.base_id, holder=_Holder).where(
        _Holder.id != repository.id,
        or_(
            _Holder.is_private.is_(False),
            and_(_Reader.is_private, _Holder.namespace_id == _Reader.namespace_id),
        ),
    )
    may_not_read_base = ~exists(base.correlate(TensorBase, _Reader))
    named = _names(FileTensor.tensor_id == TensorBase.tensor_id)
    held = select(Hold.tensor_id).where(Hold.tensor_id == TensorBase.tensor_id)
    held_by_client = held.join(_Reader, _Reader.id == Hold.repository_id).where(
        Hold.expires_at > utc_now()
    )
    held_by_job = (
        held.join(Job, Job.id == Hold.job_id)
        .join(_Reader, _Reader.id == Job.repository_id)
        .where(Job.state.in_(queue.ACTIVE))
    )
    return or_(
        *(
            exists(query.where(_is_outside(repository), may_not_read_base).correlate(TensorBase))
            for query in (named, held_by_client, held_by_job)
        )
    )


def _is_outside(repository: Repository) -> ColumnElement[bool]:
    """SQL condition on _Reader: people outside the repository's namespace may read it."""
    return and_(
        _Reader.id != repository.id,
        or_(_Reader.is_private.is_(False), _Reader.namespace_id != repository.namespace_id),
    )


def _names(condition: ColumnElement[bool], holder: type[Repository] = _Reader) -> Select[int]:
    """A query over the repositories whose revisions name tensors. condition: on FileTensor."""
    return (
        select(FileTensor.tensor_id)
        .join(Entry, Entry.file_id == FileTensor.file_id)
        .join(Revision, Revision.id == Entry.revision_id)
        .join(holder, holder.id == Revision.repository_id)
        .where(condition)
    )

"""Lineage as the weights show it: what share of a revision is made from, or shared with, others."""

from collections.abc import Collection, Iterable

from sqlalchemy import delete, func, select

from deltahub.registry.db.models import (
    Entry,
    File,
    FileTensor,
    LineageEdge,
    Repository,
    Revision,
    Tensor,
)
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.locations import allowed_domains, batches, closure

# Less than this is chance: a common tokenizer, a tensor of zeros.
MIN_SHARE = 0.05
MAX_PARENTS = 5


def measure_lineage(session: WriteSession, revision_id: int) -> dict[int, float]:
    """parent revision -> share; writes the measured edges of the revision anew.

    share: bytes of the revision's distinct tensors that are also the parent's, or are decoded
    from tensors that are, over the bytes of all. Parents lie in other repositories that the
    owner may read: the declared base, and the first holders of what is shared.
    """
    sizes = _tensor_sizes(session, revision_id)
    total = sum(sizes.values())
    shares: dict[int, float] = {}
    if total:
        related = _related(session, sizes)
        wanted = {tensor for tensors in related.values() for tensor in tensors}
        revision = session.get_one(Revision, revision_id)
        for parent in _parents(session, revision, sizes.keys(), wanted - sizes.keys()):
            held = _held_by(session, parent, wanted)
            shared = sum(
                size for tensor, size in sizes.items() if not held.isdisjoint(related[tensor])
            )
            if shared >= MIN_SHARE * total:
                shares[parent] = shared / total
    best = sorted(shares, key=lambda parent: (-shares[parent], parent))[:MAX_PARENTS]
    session.execute(
        delete(LineageEdge).where(
            LineageEdge.child_id == revision_id, LineageEdge.origin == "measured"
        )
    )
    for parent in best:
        session.add(
            LineageEdge(
                child_id=revision_id,
                parent_id=parent,
                kind="finetune",
                origin="measured",
                share=shares[parent],
            )
        )
    session.flush()
    return {parent: shares[parent] for parent in best}


def _tensor_sizes(session: ReadSession, revision_id: int) -> dict[int, int]:
    """tensor -> bytes, of the revision's distinct tensors without its recipes."""
    recipes = select(File.recipe_tensor_id).where(File.recipe_tensor_id.is_not(None))
    rows = session.execute(
        select(Tensor.id, Tensor.size)
        .join(FileTensor, FileTensor.tensor_id == Tensor.id)
        .join(Entry, Entry.file_id == FileTensor.file_id)
        .where(Entry.revision_id == revision_id, Tensor.id.not_in(recipes))
        .distinct()
    )
    return {tensor: size for tensor, size in rows}


def _related(session: ReadSession, tensors: Iterable[int]) -> dict[int, set[int]]:
    """tensor -> itself and all that decoding it reads."""
    related: dict[int, set[int]] = {}
    for batch in batches(tensors):
        graph = closure(session, batch)
        for tensor in batch:
            found, level = {tensor}, {tensor}
            while level:
                level = {base for one in level for base in graph.get(one, ())} - found
                found |= level
            related[tensor] = found
    return related


def _parents(
    session: ReadSession, revision: Revision, own: Collection[int], bases: Collection[int]
) -> list[int]:
    """Revisions of other repositories that were the first to hold one of these tensors.

    Of shared tensors only older revisions count; of bases, which say themselves who came from
    whom, newer ones too: a base may arrive after its fine-tunes.
    """
    parents = dict.fromkeys(_first_holders(session, revision, bases))
    for first in _first_holders(session, revision, own):
        if first < revision.id:
            parents[first] = None
    declared = revision.declared_base_revision_id
    if declared is not None:
        base = session.get_one(Revision, declared)
        # The one that was named stands for its whole repository.
        named = base.repository_id
        parents = {one: None for one in parents if _repository_of(session, one) != named}
        if named != revision.repository_id:
            parents[declared] = None
    return list(parents)


def _first_holders(session: ReadSession, revision: Revision, tensors: Collection[int]) -> set[int]:
    """The first revision, of any other repository that the owner may read, with each tensor."""
    domain_id = session.get_one(Repository, revision.repository_id).domain_id
    domains = allowed_domains(session, domain_id)
    firsts: set[int] = set()
    for batch in batches(sorted(tensors)):
        firsts.update(
            session.scalars(
                select(func.min(Revision.id))
                .join(Repository, Repository.id == Revision.repository_id)
                .join(Entry, Entry.revision_id == Revision.id)
                .join(FileTensor, FileTensor.file_id == Entry.file_id)
                .where(
                    FileTensor.tensor_id.in_(batch),
                    Repository.id != revision.repository_id,
                    Repository.domain_id.in_(domains),
                )
                .group_by(FileTensor.tensor_id)
            )
        )
    return firsts


def _repository_of(session: ReadSession, revision_id: int) -> int:
    return session.get_one(Revision, revision_id).repository_id


def _held_by(session: ReadSession, revision_id: int, tensors: Collection[int]) -> set[int]:
    """Those of the tensors that a revision holds."""
    held: set[int] = set()
    for batch in batches(sorted(tensors)):
        held.update(
            session.scalars(
                select(FileTensor.tensor_id)
                .join(Entry, Entry.file_id == FileTensor.file_id)
                .where(Entry.revision_id == revision_id, FileTensor.tensor_id.in_(batch))
            )
        )
    return held

"""Measured lineage: the share of a revision's weights that its parents hold or are bases of."""

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import delete, func, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.catalog.declared_base import parent_edges
from deltahub.registry.catalog.lists.model_tags import MIN_BASE_SHARE, write_keys
from deltahub.registry.catalog.weights import is_safetensors, weight_tensors
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import (
    Domain,
    File,
    FileTensor,
    LineageEdge,
    Repository,
    Revision,
    Tensor,
    TensorBase,
)
from deltahub.registry.db.session import ReadSession, WriteSession, repository_key
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.lineage.holders import find_holders
from deltahub.registry.packs.locations import allowed_domains, closure
from deltahub.registry.registry import Registry

# A smaller share may be chance, such as a tensor of zeros.
MIN_SHARE = 0.05
MAX_PARENTS = 5
# Parents are searched by this number of largest tensors; shares count all tensors.
LOOKUP_TENSORS = 64
# Limits of the search for revisions to measure again after one was stored again.
AFFECTED_TENSORS = 8
MAX_AFFECTED = 200


def measure_lineage(session: WriteSession, revision_id: int) -> dict[int, float]:
    """Measure and replace the measured edges of a revision; returns parent revision -> share.

    share: of the bytes of the revision's distinct weights (tensors of its safetensors files), the
    share that the parent holds or that is decoded from the parent's tensors. Other files do not
    count, because a common licence or tokenizer says nothing about the origin of weights. Parents
    are revisions of other repositories that the owner may read: the declared base, and the first
    holders of shared tensors or bases. An export that the hub made has none: it shares small
    tensors with its model and its other exports, and names the model already.
    """
    sizes = _tensor_sizes(session, revision_id)
    if _is_export(session, revision_id):
        sizes = {}
    total = sum(sizes.values())
    shares: dict[int, float] = {}
    if total:
        related = _with_all_bases(session, sizes)
        wanted = {tensor for tensors in related.values() for tensor in tensors}
        revision = session.get_one(Revision, revision_id)
        own = sorted(sizes, key=lambda tensor: (-sizes[tensor], tensor))[:LOOKUP_TENSORS]
        bases = [base for tensor in own for base in sorted(related[tensor] - {tensor})]
        for parent in _candidate_parents(session, revision, own, list(dict.fromkeys(bases))):
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
    write_keys(session, revision_id)
    return {parent: shares[parent] for parent in best}


def find_affected(session: ReadSession, revision_id: int) -> list[int]:
    """Revisions whose measured lineage may change because this one was re-encoded, itself first.

    They hold some of its largest tensors, or tensors decoded from those. At most MAX_AFFECTED.
    """
    sizes = _tensor_sizes(session, revision_id)
    level = set(sorted(sizes, key=lambda tensor: (-sizes[tensor], tensor))[:AFFECTED_TENSORS])
    tensors: dict[int, None] = {}
    while level:
        tensors.update(dict.fromkeys(sorted(level)))
        made = select(TensorBase.tensor_id).where(TensorBase.base_id.in_(level))
        level = set(session.scalars(made.limit(MAX_AFFECTED))) - tensors.keys()
        if len(tensors) + len(level) > MAX_AFFECTED:
            break
    domains = list(session.scalars(select(Domain.id)))
    found = {revision_id: None}
    for holder in find_holders(session, tensors, domains):
        found.setdefault(holder.revision_id)
    return list(found)[:MAX_AFFECTED]


def measure_affected(reg: Registry, revision_id: int) -> None:
    """Measure the lineage of the revision again, and of those that find_affected returns."""
    with reg.db.read() as session:
        affected = find_affected(session, revision_id)
    for each in affected:
        # One transaction for each revision, so that other writers wait for one only.
        with reg.db.read() as session:
            found = session.get(Revision, each)
        if found is None:
            continue
        with reg.db.write_beside(repository_key(found.repository_id)) as session:
            now = session.get(Revision, each)
            if now is not None and now.commit == found.commit:
                measure_lineage(session, each)


def _is_export(session: ReadSession, revision_id: int) -> bool:
    """Whether a job of this hub made the repository as an export."""
    return session.get_one(Repository, _repository_of(session, revision_id)).role == "export"


def _tensor_sizes(session: ReadSession, revision_id: int) -> dict[int, int]:
    """tensor -> bytes, for the distinct tensors of the revision's safetensors files."""
    rows = session.execute(
        select(Tensor.id, Tensor.size).where(Tensor.id.in_(weight_tensors(revision_id)))
    )
    return {tensor: size for tensor, size in rows}


def _with_all_bases(session: ReadSession, tensors: Iterable[int]) -> dict[int, set[int]]:
    """tensor -> itself and all tensors that decoding it reads."""
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


def _candidate_parents(
    session: ReadSession, revision: Revision, own: Collection[int], bases: Collection[int]
) -> list[int]:
    """Revisions of other repositories that were the first to hold some of these tensors.

    own, bases: only the largest tensors, because the cost grows with their number. For a shared
    tensor only older revisions count. For a base newer revisions count too, because a base may
    arrive after its fine-tunes. A tensor that this repository held earlier gives no parent, because
    the other repositories have it from this one.
    """
    domain_id = session.get_one(Repository, revision.repository_id).domain_id
    domains = allowed_domains(session, domain_id)
    parents: dict[int, None] = {}
    for tensors, is_base in ((bases, True), (own, False)):
        firsts: dict[int, int] = {}
        for holder in find_holders(
            session, tensors, domains, exclude_repository=revision.repository_id
        ):
            known = firsts.get(holder.tensor_id, holder.revision_id)
            firsts[holder.tensor_id] = min(known, holder.revision_id)
        if not is_base:
            firsts = {tensor: first for tensor, first in firsts.items() if first < revision.id}
        here = _first_in_repository(session, revision, firsts)
        parents.update(
            (first, None) for tensor, first in firsts.items() if first < here.get(tensor, first + 1)
        )
    declared = revision.declared_base_revision_id
    if declared is not None:
        base = session.get_one(Revision, declared)
        named = base.repository_id
        # If the declared revision holds some of these, no other revision of its model is a parent.
        if _held_by(session, declared, [*own, *bases]):
            parents = {one: None for one in parents if _repository_of(session, one) != named}
        if named != revision.repository_id:
            parents[declared] = None
    return list(parents)


def _first_in_repository(
    session: ReadSession, revision: Revision, firsts: Mapping[int, int]
) -> dict[int, int]:
    """tensor -> the first revision of this repository, up to `revision`, that holds the tensor.

    firsts: tensor -> the first revision elsewhere; later revisions of this repository are not
    searched. The query starts at the repository's own files, because a million other files may
    hold a popular tensor.
    """
    if not firsts:
        return {}
    before = min(revision.id, max(firsts.values()))
    of_files = {
        file: first
        for file, first in session.execute(
            select(Entry.file_id, func.min(Revision.id))
            .join(Revision, Revision.id == Entry.revision_id)
            .join(File, File.id == Entry.file_id)
            .where(
                Revision.repository_id == revision.repository_id,
                Revision.id <= before,
                is_safetensors(),
            )
            .group_by(Entry.file_id)
        )
    }
    found: dict[int, int] = {}
    for files in batches(sorted(of_files)):
        for tensors in batches(sorted(firsts)):
            for tensor, file in session.execute(
                select(FileTensor.tensor_id, FileTensor.file_id).where(
                    FileTensor.file_id.in_(files), FileTensor.tensor_id.in_(tensors)
                )
            ):
                found[tensor] = min(of_files[file], found.get(tensor, of_files[file]))
    return found


def _repository_of(session: ReadSession, revision_id: int) -> int:
    return session.get_one(Revision, revision_id).repository_id


def _held_by(session: ReadSession, revision_id: int, tensors: Collection[int]) -> set[int]:
    """The subset of the tensors that a revision holds."""
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


def measured_bases(
    session: ReadSession, caller: Caller | None, revision: Revision
) -> tuple[str, ...]:
    """Current names of the models that give at least MIN_BASE_SHARE of the revision's weights.

    Their tensors are in the revision, or are bases of its deltas. Only models that the caller may
    read are listed.
    """
    found = []
    for edge in parent_edges(session, revision, "measured"):
        if edge.share is None or edge.share < MIN_BASE_SHARE:
            break  # edges are sorted by share
        base = session.get_one(Revision, edge.parent_id)
        repository = session.get_one(Repository, base.repository_id)
        if allowed(session, caller, "read", repository):
            found.append(full_name(session, repository))
    return tuple(found)

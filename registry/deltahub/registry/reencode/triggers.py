"""After an ingest: store sketches and lineage, resolve declared bases, enqueue re-planning."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import exists, func, select

from deltahub.registry.catalog.runs.steps import follows_a_step
from deltahub.registry.catalog.weights import (
    has_weights,
    safetensors_files,
    weight_bytes,
    weight_tensors,
)
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    File,
    FileTensor,
    Revision,
    Tensor,
    TensorBase,
)
from deltahub.registry.db.session import (
    ReadSession,
    WriteSession,
    also_lock,
    repository_key,
)
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.failpoints import reached
from deltahub.registry.jobs import queue
from deltahub.registry.lineage.holders import find_holders
from deltahub.registry.lineage.measured import measure_lineage
from deltahub.registry.lineage.model_sketch import sketch_stored
from deltahub.registry.lineage.moving_base import (
    apply_moves,
    declares_model,
    find_moves,
    find_own_move,
)
from deltahub.registry.lineage.similar import find_similar_tensors, load_sketches, store_sketches
from deltahub.registry.lineage.target import Target
from deltahub.registry.lineage.tensor_sketch import TensorSketch
from deltahub.registry.registry import Registry
from deltahub.registry.uploads import recipes

# Revisions that one ingest may have re-planned because their weights are similar.
MAX_SIMILAR = 32
# At this share of bytes re-planning changes nothing: norms and other small tensors are standalone
# with any base.
COMPLETE_SHARE = 0.95


def after_ingest(reg: Registry, reader: FileReader, revision_id: int) -> list[str]:
    """Store the revision's sketches and measured lineage; enqueue re-planning of its relatives.

    Returns the new job ids; none if the revision was deleted. It can be run again. Nothing is done
    for a step that follows another one of its run: that is its relative, and its base already.
    """
    with reg.db.read() as session:
        revision = session.get(Revision, revision_id)
        if revision is None or follows_a_step(session, revision):
            return []
    sketches = sketch_stored(reg, reader, revision_id)
    with reg.db.read() as session:
        revision = session.get(Revision, revision_id)
    return [] if revision is None else _store_findings(reg, revision, sketches)


def _store_findings(
    reg: Registry, revision: Revision, sketches: Sequence[tuple[int, TensorSketch]]
) -> list[str]:
    shares = _measure(reg, revision, sketches)
    if shares is None:
        return []
    with reg.db.read() as session:
        others_change = _same(session, revision) and bool(
            find_moves(session, Target.load(session, revision.id))
        )
    # Alone, if it changes revisions of other repositories: those that declare this base.
    opened = reg.db.write() if others_change else reg.db.write_beside(_key(revision))
    with opened as session:
        if not _same(session, revision):
            return []
        enqueued = enqueue_relatives(session, revision.id, are_bases_moved=others_change)
        target = Target.load(session, revision.id)
        # The client encoded tensors without a base, or the base was declared after the ingest.
        if _was_sent_standalone(session, target) or _was_declared_late(
            session, revision.id, shares
        ):
            job = enqueue_replan(session, revision.id)
            enqueued += [] if job is None else [job]
        reached("arrivals.before_commit")
    reached("arrivals.after_commit")
    return enqueued


@retried
def _measure(
    reg: Registry, revision: Revision, sketches: Sequence[tuple[int, TensorSketch]]
) -> dict[int, float] | None:
    """See measure_lineage; None if the revision was deleted."""
    with reg.db.write_beside(_key(revision)) as session:
        if not _same(session, revision):
            return None
        known = set(
            session.scalars(select(Tensor.id).where(Tensor.id.in_([t for t, _ in sketches])))
        )
        store_sketches(session, ((t, sketch) for t, sketch in sketches if t in known))
        return measure_lineage(session, revision.id)


def _key(revision: Revision) -> str:
    return repository_key(revision.repository_id)


def _same(session: ReadSession, revision: Revision) -> bool:
    """Whether the revision is there still. Row ids are given again."""
    now = session.get(Revision, revision.id)
    return now is not None and now.commit == revision.commit


def enqueue_relatives(
    session: WriteSession, revision_id: int, *, are_bases_moved: bool = True
) -> list[str]:
    """Enqueue re-planning of the revisions that may become smaller with this one; returns job ids.

    These are revisions that declared it as their base before it was ingested, and similar revisions
    with standalone tensors whose owners may read it. are_bases_moved: resolve what others declare
    first; the session has to be alone then.
    """
    target = Target.load(session, revision_id)
    # Its base may have come, or have moved on, while the revision was committed.
    moves = find_own_move(session, session.get_one(Revision, revision_id))
    if are_bases_moved:
        moves += find_moves(session, target)
    moved = apply_moves(session, moves)
    if not has_weights(session, revision_id):
        return []  # its children wait for a revision with weights
    declared = select(Revision.id).where(Revision.declared_base_revision_id == revision_id)
    children = moved | set(session.scalars(declared)) | _similar_revisions(session, target)
    if revision_id not in moved:
        children.discard(revision_id)
    # The newest first: they may be made from older ones. If those got a base first, the chain of
    # deltas might become too long.
    newest_first = sorted(children, reverse=True)
    return [job for child in newest_first if (job := enqueue_replan(session, child)) is not None]


def enqueue_replan(session: WriteSession, revision_id: int) -> str | None:
    """Enqueue re-planning of a revision, unless a re-plan or ingest of it is queued already.

    A queued job that has begun made room for another job. It may have passed the tensors at hand.
    """
    also_lock(session, f"replan {revision_id}")  # another arrival may find the same relative
    queued = session.scalar(
        select(Job.id).where(
            Job.kind.in_(("replan", "ingest")),
            Job.state == "queued",
            Job.started_at.is_(None),
            Job.payload["revision_id"].as_integer() == revision_id,
        )
    )
    if queued is not None:
        return None
    revision = session.get_one(Revision, revision_id)
    return queue.enqueue(
        session,
        "replan",
        {"revision_id": revision_id},
        revision.repository_id,
        revision.author_id,
        size_bytes=weight_bytes(session, revision_id),
    )


def _was_sent_standalone(session: ReadSession, target: Target) -> bool:
    """Whether a file came as a client's recipe and one of its tensors is standalone."""
    came_as_recipe = exists(
        select(Job.id).where(
            Job.kind == recipes.JOB_KIND,
            Job.repository_id == target.repository_id,
            Job.payload["sha256"].as_string() == File.sha256,
        )
    )
    standalone = (
        weight_tensors(target.revision_id)
        .join(Tensor, Tensor.id == FileTensor.tensor_id)
        .where(Tensor.depth == 0, came_as_recipe)
    )
    return session.scalar(standalone.limit(1)) is not None


def _was_declared_late(session: ReadSession, revision_id: int, shares: Mapping[int, float]) -> bool:
    """Whether weights ingested before this commit are not made from the base it declares.

    shares: see measure_lineage.
    """
    revision = session.get_one(Revision, revision_id)
    base = revision.declared_base_revision_id
    if base is None or shares.get(base, 0.0) >= COMPLETE_SHARE:
        return False
    older = safetensors_files(revision_id).where(File.ingested_at < revision.created_at)
    return session.scalar(older.limit(1)) is not None


def _similar_revisions(session: ReadSession, target: Target) -> set[int]:
    """The newest revision of each repository with standalone tensors similar to the target's.

    A tensor that was in the same domain earlier does not become a delta of a later one, unless its
    revision declares the target's model as its base.
    """
    tensors = (
        select(FileTensor.tensor_id)
        .join(Entry, Entry.file_id == FileTensor.file_id)
        .where(Entry.revision_id == target.revision_id)
    )
    own = set(session.scalars(tensors))
    domains = _domains_that_may_refer(session, target.domain_id)
    sketches = load_sketches(session, sorted(own))
    similar: set[int] = set()
    for sketch in sketches.values():
        similar |= find_similar_tensors(session, sketch, domains).keys() - own
    # A base of the new tensors cannot become a delta of them.
    bases = select(TensorBase.base_id).where(TensorBase.tensor_id.in_(tensors))
    similar -= set(session.scalars(bases))
    first = session.scalar(select(func.min(Tensor.created_at)).where(Tensor.id.in_(sketches)))
    standalone: dict[int, int] = {}
    older: dict[int, int] = {}
    for batch in batches(similar):
        rows = session.execute(
            select(Tensor.id, Tensor.domain_id, Tensor.created_at).where(
                Tensor.id.in_(batch), Tensor.depth == 0
            )
        )
        for tensor, domain, created_at in rows:
            is_younger = first is not None and created_at >= first
            holders = standalone if domain != target.domain_id or is_younger else older
            holders[tensor] = domain
    found = _newest_holders(session, standalone, domains, target.repository_id)
    if older:
        declaring = set(session.scalars(select(Revision.id).where(declares_model(target))))
        found |= _newest_holders(session, older, domains, target.repository_id, among=declaring)
    return found


def _newest_holders(
    session: ReadSession,
    tensors: Mapping[int, int],
    domains: Collection[int],
    exclude_repository: int | None = None,
    among: Collection[int] | None = None,
) -> set[int]:
    """The newest revision of each repository that holds some of the tensors, at most MAX_SIMILAR.

    tensors: row -> its domain. A private revision with a public tensor is left out, because only
    the public owner may re-encode it. among: the revisions to choose from; None for all.
    """
    newest: dict[int, int] = {}
    for holder in find_holders(
        session, sorted(tensors), domains, exclude_repository=exclude_repository
    ):
        if among is not None and holder.revision_id not in among:
            continue
        if holder.domain_id == tensors[holder.tensor_id]:
            known = newest.get(holder.repository_id, 0)
            newest[holder.repository_id] = max(known, holder.revision_id)
    return set(sorted(newest.values(), reverse=True)[:MAX_SIMILAR])


def _domains_that_may_refer(session: ReadSession, domain_id: int) -> list[int]:
    """Domains whose data may refer to this domain: all for public data, else only its own."""
    domain = session.get_one(Domain, domain_id)
    if domain.key != PUBLIC_DOMAIN_KEY:
        return [domain_id]
    return list(session.scalars(select(Domain.id)))

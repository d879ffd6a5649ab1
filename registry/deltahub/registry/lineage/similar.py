"""Search for relatives of a model among all models its owner may read, by tensor sketches."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Sketch, Tensor
from deltahub.registry.lineage.holders import find_holders
from deltahub.registry.lineage.tensor_sketch import TensorSketch, similarity

MAX_FAMILIES = 5
# Of ten thousand unrelated tensors of one shape, about one shares two of 16 bands by chance.
MIN_BANDS = 2
MIN_SIMILARITY = 0.5
# The oldest tensors of a band are likely bases of a family, the newest its nearest relatives.
OLDEST_PER_BAND = 64
NEWEST_PER_BAND = 16
# Tensors whose whole sketches are compared with one sketch.
MAX_COMPARED = 32


@dataclass(frozen=True)
class Family:
    """A stored revision that is a likely relative. score: sum of similarities, at most 8."""

    revision_id: int
    repository_id: int
    score: float


def store_sketches(session: Session, sketches: Iterable[tuple[int, TensorSketch]]) -> None:
    """Store the sketches of stored tensors, (tensor, sketch); an existing sketch stays."""
    for tensor_id, sketch in sketches:
        if session.get(Sketch, (tensor_id, 0)) is not None:
            continue
        session.execute(delete(Sketch).where(Sketch.tensor_id == tensor_id))
        for band, value in enumerate(sketch.bands):
            session.add(
                Sketch(
                    tensor_id=tensor_id,
                    band=band,
                    value=value,
                    shape_class=sketch.shape_class,
                    positions=sketch.to_bytes() if band == 0 else None,
                )
            )
    session.flush()


def load_sketches(session: Session, tensors: Iterable[int]) -> dict[int, TensorSketch]:
    """tensor -> its sketch, for tensors that have one."""
    found: dict[int, TensorSketch] = {}
    for batch in batches(tensors):
        rows = session.execute(
            select(Sketch.tensor_id, Sketch.shape_class, Sketch.positions).where(
                Sketch.tensor_id.in_(batch), Sketch.band == 0
            )
        )
        for tensor_id, shape_class, positions in rows:
            if positions is not None:
                found[tensor_id] = TensorSketch.from_bytes(shape_class, positions)
    return found


def find_similar_tensors(
    session: Session, sketch: TensorSketch, domains: Collection[int]
) -> dict[int, float]:
    """tensor -> similarity, for stored tensors in these domains at least MIN_SIMILARITY similar."""
    shared: dict[int, int] = {}
    for band, value in enumerate(sketch.bands):
        for tensor_id in _tensors_in_band(session, band, value, sketch.shape_class, domains):
            shared[tensor_id] = shared.get(tensor_id, 0) + 1
    likely = [tensor for tensor, n_bands in shared.items() if n_bands >= MIN_BANDS]
    likely.sort(key=lambda tensor: (-shared[tensor], tensor))
    found: dict[int, float] = {}
    for tensor_id, other in load_sketches(session, likely[:MAX_COMPARED]).items():
        near = similarity(sketch, other)
        if near >= MIN_SIMILARITY:
            found[tensor_id] = near
    return found


def find_families(
    session: Session,
    sketches: Sequence[TensorSketch],
    domains: Collection[int],
    *,
    exclude_repository: int | None = None,
) -> list[Family]:
    """At most MAX_FAMILIES revisions in these domains with similar tensors, the likeliest first.

    domains: the domains that the owner of the sketched model may read; no others are searched.
    exclude_repository: the model's own repository, whose earlier revisions are candidates anyway.
    """
    scores: dict[int, float] = {}
    repositories: dict[int, int] = {}
    for sketch in sketches:
        similar = find_similar_tensors(session, sketch, domains)
        best: dict[int, float] = {}
        holders = find_holders(session, similar, domains, exclude_repository=exclude_repository)
        for holder in holders:
            repositories[holder.revision_id] = holder.repository_id
            near = similar[holder.tensor_id]
            best[holder.revision_id] = max(best.get(holder.revision_id, 0.0), near)
        for revision, score in best.items():
            scores[revision] = scores.get(revision, 0.0) + score
    ranked = sorted(scores, key=lambda revision: (-round(scores[revision], 2), revision))
    families: dict[int, Family] = {}
    for revision in ranked:
        repository = repositories[revision]
        if repository not in families:
            families[repository] = Family(revision, repository, scores[revision])
    return list(families.values())[:MAX_FAMILIES]


def _tensors_in_band(
    session: Session, band: int, value: int, shape_class: str, domains: Collection[int]
) -> set[int]:
    matching = (
        select(Sketch.tensor_id)
        .join(Tensor, Tensor.id == Sketch.tensor_id)
        .where(
            Sketch.band == band,
            Sketch.value == value,
            Sketch.shape_class == shape_class,
            Tensor.domain_id.in_(domains),
        )
    )
    oldest = session.scalars(matching.order_by(Sketch.tensor_id).limit(OLDEST_PER_BAND)).all()
    if len(oldest) < OLDEST_PER_BAND:
        return set(oldest)
    newest = session.scalars(matching.order_by(Sketch.tensor_id.desc()).limit(NEWEST_PER_BAND))
    return {*oldest, *newest}

"""What stands in the way of a named base: tensors that must stand alone before others can move.

A base that came late, or was named late, may be stored as a difference from its own fine-tune, and
other models may be at the end of chains that begin there. They are written anew without a base
first, read back and switched like everything else; then the fine-tune can become a difference
from its base; then they are planned anew themselves, by jobs of their own.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from deltahub.codecs.frame import TensorSpec
from deltahub.registry.arrivals import enqueue_replan, newest_holders
from deltahub.registry.db.models import Tensor, TensorBase
from deltahub.registry.db.session import WriteSession
from deltahub.registry.encode import encode_tensor
from deltahub.registry.locations import batches
from deltahub.registry.packs import PackSpool, SealedPacks, frame_limit
from deltahub.registry.planning import BaseChoice
from deltahub.registry.publish import make_live, switch_tensor
from deltahub.registry.registry import Registry
from deltahub.registry.restore import Restorer
from deltahub.registry.tensor_reader import MAX_CHAIN

# A tensor that more depend on stays where it is.
MAX_DEPENDENTS = 1000
# Tensors that may have to stand alone for one to become a delta.
MAX_ASIDE = 64


@dataclass(frozen=True)
class Dependents:
    """The tensors that decoding leads from to one, each with the deltas in between."""

    distances: Mapping[int, int]

    @property
    def height(self) -> int:
        return max(self.distances.values(), default=0)


def find_dependents(
    session: Session, tensor_id: int, without: Collection[int] = ()
) -> Dependents | None:
    """What is made from a tensor, directly or not; None if that is too much to move.

    without: tensors that will stand alone, and what is made from the tensor through them only.
    """
    distances: dict[int, int] = {}
    level, distance = {tensor_id}, 0
    while level:
        distance += 1
        following: set[int] = set()
        for batch in batches(level):
            query = select(TensorBase.tensor_id).where(TensorBase.base_id.in_(batch))
            following.update(session.scalars(query.limit(MAX_DEPENDENTS + 1)))
        level = following - set(without)
        distances.update(dict.fromkeys(level, distance))
        if len(distances) > MAX_DEPENDENTS or distance > MAX_CHAIN:
            return None
    return Dependents(distances)


def find_aside(
    session: Session, tensor_id: int, choice: BaseChoice, max_depth: int
) -> set[int] | None:
    """The rows that must stand alone before the tensor can be switched to the choice.

    None if those are too many, or in part another namespace's.
    """
    turned = set(choice.turned)
    rest = find_dependents(session, tensor_id, turned)
    if rest is None:
        return None
    too_deep = {one for one, far in rest.distances.items() if choice.depth + far > max_depth}
    aside = turned | too_deep
    if len(aside) > MAX_ASIDE:
        return None
    domain_id = select(Tensor.domain_id).where(Tensor.id == tensor_id).scalar_subquery()
    of_others = select(Tensor.id).where(Tensor.id.in_(aside), Tensor.domain_id != domain_id)
    return None if session.scalar(of_others.limit(1)) is not None else aside


def encode_alone(reg: Registry, restorer: Restorer, spool: PackSpool, tensor_id: int) -> int | None:
    """Add a stored tensor's frames to the spool, coded without a base; its row.

    None for one that is gone, or there already.
    """
    location = restorer.locate([tensor_id]).get(tensor_id)
    if location is None or not location.frames or location.hash in spool:
        return None
    header = restorer.frames.open(location.frames[0]).view.header
    count, columns = header.tensor_count, header.columns
    rows = count // columns if count % columns == 0 else 1
    encode_tensor(
        spool,
        TensorSpec(location.hash, header.dtype, rows, count // rows),
        partial(restorer.read_tensor_into, tensor_id),
        max_frame_bytes=frame_limit(reg.settings.pack_bytes),
        threads=reg.settings.codec_threads,
        effort=reg.settings.effort,
    )
    return tensor_id


def switch_alone(session: WriteSession, sealed: SealedPacks, rows: Iterable[int]) -> int:
    """Read these rows from sealed frames that need no base; how many were deltas until now.

    The newest revision of each repository that holds one is planned anew by a job of its own.
    """
    make_live(session, sealed)
    switched: dict[int, int] = {}
    for row_id in rows:
        row = session.get(Tensor, row_id)
        # Ids of deleted rows are given out again.
        if row is None or row.hash not in sealed.tensors or row.domain_id != sealed.domain_id:
            continue
        if row.depth > 0:
            # It needs nothing from now on, so no chain becomes longer.
            switch_tensor(session, row_id, sealed.tensors[row.hash].frames, (), MAX_CHAIN)
            switched[row_id] = row.domain_id
    for revision in newest_holders(session, switched, [sealed.domain_id]):
        enqueue_replan(session, revision)
    return len(switched)

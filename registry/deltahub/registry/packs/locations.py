"""Where a tensor's frames are stored, and which stored tensor a content id means in a domain."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.orm import Session

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    FileTensor,
    Frame,
    Hold,
    Repository,
    Revision,
    Tensor,
    TensorBase,
    utc_now,
)
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.errors import DataLost
from deltahub.registry.jobs import queue


@dataclass(frozen=True, slots=True)
class FrameLocation:
    """One frame: the bytes [start, start + size) of `tensor`, encoded in `length` bytes of a pack.

    tensor: a content id. tried: the encoder generation (encoder_generation.py) of a new frame that
    has no row yet.
    """

    start: int
    size: int
    pack_id: str
    offset: int
    length: int
    codec: int
    tensor: bytes
    tried: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """A stored tensor and its frames in order of start.

    bases: content id -> domain of each base of these frames. The same bytes may be stored privately
    and publicly, so the content id alone does not say which row the frames need.
    """

    id: int
    domain_id: int
    hash: bytes
    size: int
    frames: tuple[FrameLocation, ...]
    bases: Mapping[bytes, int]

    def frame_at(self, byte: int) -> FrameLocation | None:
        """The frame that holds this byte of the tensor, if any."""
        index = bisect_right(self.frames, byte, key=lambda frame: frame.start) - 1
        if index < 0:
            return None
        frame = self.frames[index]
        return frame if byte < frame.start + frame.size else None

    def frame_holding(self, byte: int) -> FrameLocation:
        """The frame that holds this byte of the tensor; DataLost if its rows leave it out."""
        frame = self.frame_at(byte)
        if frame is None:
            raise DataLost(
                f"no frame holds byte {byte} of tensor {self.hash.hex()}; run deltahub fsck"
            )
        return frame


def allowed_domains(session: Session, domain_id: int) -> tuple[int, ...]:
    """The domains that data of this domain may refer to: itself, then the public one."""
    public = session.scalar(select(Domain.id).where(Domain.key == PUBLIC_DOMAIN_KEY))
    return (domain_id,) if public is None or public == domain_id else (domain_id, public)


def is_leaving() -> ColumnElement[bool]:
    """SQL condition on Repository: a job is about to make it private or to delete it."""
    return exists().where(
        Job.repository_id == Repository.id,
        Job.kind == queue.WITHDRAW,
        Job.state.in_(queue.ACTIVE),
    )


def usable_bases(
    session: Session, domain_id: int, tensor_ids: Iterable[int], job_id: str | None = None
) -> set[int]:
    """The subset of these rows that new deltas of a domain may have as bases.

    A tensor and its delta together reveal the base. So everybody who may read data of the domain
    must be able to read the base: it is private data of the domain itself, or a revision of a
    public repository or of a repository of the domain names it. A repository that is being made
    private or deleted does not count. A tensor that no revision names yet is usable while a client
    holds it for a repository of the domain, because that client has just sent it, and for the job
    that made it: its result will name it.
    """
    domains = allowed_domains(session, domain_id)
    is_private_data = and_(
        Tensor.domain_id == domain_id,
        Tensor.domain_id.in_(select(Domain.id).where(Domain.key != PUBLIC_DOMAIN_KEY)),
    )
    is_named = (
        exists()
        .where(FileTensor.tensor_id == Tensor.id, Entry.file_id == FileTensor.file_id)
        .where(Revision.id == Entry.revision_id)
    )
    is_shared = is_named.where(
        Repository.id == Revision.repository_id, Repository.domain_id.in_(domains), ~is_leaving()
    )
    is_just_sent = exists().where(
        Hold.tensor_id == Tensor.id,
        Hold.repository_id == Repository.id,
        Repository.domain_id == domain_id,
        Hold.expires_at > utc_now(),
    )
    is_just_made = exists().where(
        Hold.tensor_id == Tensor.id, Hold.job_id == job_id, Tensor.domain_id == domain_id
    )
    is_new = is_just_sent if job_id is None else or_(is_just_sent, is_just_made)
    usable: set[int] = set()
    for batch in batches(dict.fromkeys(tensor_ids)):
        query = select(Tensor.id).where(
            Tensor.id.in_(batch), or_(is_private_data, is_shared, and_(~is_named, is_new))
        )
        usable.update(session.scalars(query))
    return usable


def resolve(session: Session, domain_id: int, hashes: Iterable[bytes]) -> dict[bytes, Tensor]:
    """Content id -> the stored tensor that it means in a domain: the domain's own, else the public.

    The other one takes the place of one that is lost. Content ids without a stored tensor are
    missing from the result.
    """
    domains = allowed_domains(session, domain_id)
    found: dict[bytes, Tensor] = {}
    for batch in batches(dict.fromkeys(hashes)):
        rows = session.scalars(
            select(Tensor).where(Tensor.hash.in_(batch), Tensor.domain_id.in_(domains))
        )
        for tensor in rows:
            known = found.get(tensor.hash)
            if known is None or _is_better(tensor.lost, tensor.domain_id == domain_id, known.lost):
                found[tensor.hash] = tensor
    return found


def resolve_ids(session: Session, domain_id: int, hashes: Iterable[bytes]) -> dict[bytes, int]:
    """Like resolve, but returns only row ids, which is several times faster for many tensors."""
    domains = allowed_domains(session, domain_id)
    found: dict[bytes, tuple[int, str | None]] = {}
    for batch in batches(dict.fromkeys(hashes)):
        rows = session.execute(
            select(Tensor.hash, Tensor.id, Tensor.domain_id, Tensor.lost).where(
                Tensor.hash.in_(batch), Tensor.domain_id.in_(domains)
            )
        )
        for content, row_id, domain, lost in rows:
            known = found.get(content)
            if known is None or _is_better(lost, domain == domain_id, known[1]):
                found[content] = row_id, lost
    return {content: row_id for content, (row_id, _) in found.items()}


def _is_better(lost: str | None, is_own: bool, other_lost: str | None) -> bool:
    """Whether a row is preferred to the other one of the same content id, of the other domain."""
    if (lost is None) != (other_lost is None):
        return lost is None
    return is_own


def locate(session: Session, tensor_ids: Iterable[int]) -> dict[int, TensorLocation]:
    """Row id -> location of the tensor. Deleted tensors are missing from the result."""
    found: dict[int, TensorLocation] = {}
    for batch in batches(dict.fromkeys(tensor_ids)):
        rows = session.execute(
            select(Tensor.id, Tensor.domain_id, Tensor.hash, Tensor.size).where(
                Tensor.id.in_(batch)
            )
        ).all()
        contents = {row.id: row.hash for row in rows}
        frames: dict[int, list[FrameLocation]] = {}
        for place in session.execute(
            select(
                Frame.tensor_id,
                Frame.start,
                Frame.size,
                Frame.pack_id,
                Frame.offset,
                Frame.length,
                Frame.codec,
            )
            .where(Frame.tensor_id.in_(list(contents)))
            .order_by(Frame.tensor_id, Frame.start)
        ):
            frame = FrameLocation(*place[1:], contents[place[0]])
            frames.setdefault(place[0], []).append(frame)
        bases: dict[int, dict[bytes, int]] = {}
        for tensor_id, content, domain_id in session.execute(
            select(TensorBase.tensor_id, Tensor.hash, Tensor.domain_id)
            .join(Tensor, Tensor.id == TensorBase.base_id)
            .where(TensorBase.tensor_id.in_(batch))
        ):
            bases.setdefault(tensor_id, {})[content] = domain_id
        for row in rows:
            found[row.id] = TensorLocation(
                *row, frames=tuple(frames.get(row.id, ())), bases=bases.get(row.id, {})
            )
    return found


def locate_content(
    session: Session, domain_id: int, content: bytes, *, is_exact: bool = False
) -> TensorLocation | None:
    """The location of the tensor that a content id means in a domain.

    is_exact: only the tensor of that domain. If that is lost, its public twin is as good.
    """
    row = resolve(session, domain_id, [content]).get(content)
    if row is not None and is_exact and row.domain_id != domain_id:
        own = select(Tensor.id).where(Tensor.domain_id == domain_id, Tensor.hash == content)
        if session.scalar(own) is None:
            return None
    return None if row is None else locate(session, [row.id]).get(row.id)


def bases_of(session: Session, tensor_ids: Iterable[int]) -> dict[int, set[int]]:
    """Tensor -> the tensors that its frames are deltas of."""
    found: dict[int, set[int]] = {}
    for batch in batches(dict.fromkeys(tensor_ids)):
        for tensor_id, base_id in session.execute(
            select(TensorBase.tensor_id, TensorBase.base_id).where(TensorBase.tensor_id.in_(batch))
        ):
            found.setdefault(tensor_id, set()).add(base_id)
    return found


def closure(session: Session, tensor_ids: Iterable[int]) -> dict[int, set[int]]:
    """Every tensor that is needed to decode these, including themselves -> its direct bases."""
    graph: dict[int, set[int]] = {}
    wanted = set(tensor_ids)
    while wanted:
        edges = bases_of(session, wanted)
        graph.update({tensor_id: edges.get(tensor_id, set()) for tensor_id in wanted})
        wanted = {base for bases in edges.values() for base in bases} - graph.keys()
    return graph


def is_unchanged(then: TensorLocation, now: TensorLocation | None) -> bool:
    """Whether the tensor still has the same frames. They may have been copied to other packs."""
    if now is None or (now.hash, now.domain_id) != (then.hash, then.domain_id):
        return False
    return _frame_layout(now) == _frame_layout(then) and now.bases == then.bases


def _frame_layout(tensor: TensorLocation) -> list[tuple[int, int, int, int]]:
    return [(frame.start, frame.size, frame.length, frame.codec) for frame in tensor.frames]

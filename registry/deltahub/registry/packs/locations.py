"""Where a tensor's frames lie now, and which stored tensor a content id means in a domain."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import PUBLIC_DOMAIN_KEY, Domain, Frame, Tensor, TensorBase


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

    bases: the domain in which each base of these frames lies, by content id. With the same bytes
    stored privately and publicly, the content id alone does not say which row the frames need.
    """

    id: int
    domain_id: int
    hash: bytes
    size: int
    frames: tuple[FrameLocation, ...]
    bases: Mapping[bytes, int]

    def frame_at(self, byte: int) -> FrameLocation | None:
        """The frame that holds this byte of the tensor."""
        index = bisect_right(self.frames, byte, key=lambda frame: frame.start) - 1
        if index < 0:
            return None
        frame = self.frames[index]
        return frame if byte < frame.start + frame.size else None


def allowed_domains(session: Session, domain_id: int) -> tuple[int, ...]:
    """The domains that data of this one may refer to: itself first, then public."""
    public = session.scalar(select(Domain.id).where(Domain.key == PUBLIC_DOMAIN_KEY))
    return (domain_id,) if public is None or public == domain_id else (domain_id, public)


def resolve(session: Session, domain_id: int, hashes: Iterable[bytes]) -> dict[bytes, Tensor]:
    """The stored tensors that these content ids mean in a domain: its own, else public ones.

    What is absent is absent from the result.
    """
    domains = allowed_domains(session, domain_id)
    found: dict[bytes, Tensor] = {}
    for batch in batches(dict.fromkeys(hashes)):
        rows = session.scalars(
            select(Tensor).where(Tensor.hash.in_(batch), Tensor.domain_id.in_(domains))
        )
        for tensor in rows:
            if tensor.hash not in found or tensor.domain_id == domain_id:
                found[tensor.hash] = tensor
    return found


def resolve_ids(session: Session, domain_id: int, hashes: Iterable[bytes]) -> dict[bytes, int]:
    """Like resolve, but only the rows' ids: several times quicker for many."""
    domains = allowed_domains(session, domain_id)
    found: dict[bytes, int] = {}
    for batch in batches(dict.fromkeys(hashes)):
        rows = session.execute(
            select(Tensor.hash, Tensor.id, Tensor.domain_id).where(
                Tensor.hash.in_(batch), Tensor.domain_id.in_(domains)
            )
        )
        for content, row_id, domain in rows:
            if content not in found or domain == domain_id:
                found[content] = row_id
    return found


def locate(session: Session, tensor_ids: Iterable[int]) -> dict[int, TensorLocation]:
    """Where the frames of these tensors lie; a tensor that is gone is absent."""
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


def bases_of(session: Session, tensor_ids: Iterable[int]) -> dict[int, set[int]]:
    """tensor -> the tensors that its frames are coded against."""
    found: dict[int, set[int]] = {}
    for batch in batches(dict.fromkeys(tensor_ids)):
        for tensor_id, base_id in session.execute(
            select(TensorBase.tensor_id, TensorBase.base_id).where(TensorBase.tensor_id.in_(batch))
        ):
            found.setdefault(tensor_id, set()).add(base_id)
    return found


def closure(session: Session, tensor_ids: Iterable[int]) -> dict[int, set[int]]:
    """Every tensor that decoding these touches, with its own direct bases."""
    graph: dict[int, set[int]] = {}
    wanted = set(tensor_ids)
    while wanted:
        edges = bases_of(session, wanted)
        graph.update({tensor_id: edges.get(tensor_id, set()) for tensor_id in wanted})
        wanted = {base for bases in edges.values() for base in bases} - graph.keys()
    return graph


def is_unchanged(then: TensorLocation, now: TensorLocation | None) -> bool:
    """Whether the tensor has the same frames, be it in packs that were written anew."""
    if now is None or (now.hash, now.domain_id) != (then.hash, then.domain_id):
        return False
    return _shape(now) == _shape(then) and now.bases == then.bases


def _shape(tensor: TensorLocation) -> list[tuple[int, int, int, int]]:
    return [(frame.start, frame.size, frame.length, frame.codec) for frame in tensor.frames]

"""Compares the rows of frames with those of tensors and packs, page by page."""

from typing import Final

from sqlalchemy import func, select

from deltahub.codecs.frames.pack import HEADER, PACK_INDEX_BYTES, TRAILER_BYTES
from deltahub.registry.db.models import Frame, Pack, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.maintenance.fsck.cursor import Cursor
from deltahub.registry.maintenance.fsck.findings import Finding, Findings
from deltahub.registry.registry import Registry

# Tensors, or packs, of one transaction.
_TENSORS: Final = 5000
_PACKS: Final = 100


def check_coverage(reg: Registry, cursor: Cursor) -> Findings:
    """Check that a tensor's frames cover it without gaps or overlaps."""
    last = cursor.begin_after(0)
    while True:
        with reg.db.read() as session:
            page = select(Tensor.id).where(Tensor.id > last).order_by(Tensor.id).limit(_TENSORS)
            until = session.scalar(select(func.max(page.subquery().c.id)))
            if until is None:
                return
            yield from _coverage(session, int(last), until)
        last = until
        cursor.reached(last)


def _coverage(session: ReadSession, after: int, until: int) -> Findings:
    rows = session.execute(
        select(Tensor.id, Tensor.hash, Tensor.size, Frame.start, Frame.size)
        .outerjoin(Frame, Frame.tensor_id == Tensor.id)
        .where(Tensor.id > after, Tensor.id <= until)
        .order_by(Tensor.id, Frame.start)
        .execution_options(yield_per=10_000)
    )
    current: tuple[int, bytes, int] | None = None
    covered, is_right = 0, True
    for tensor, content, size, start, length in rows:
        if current is None or current[0] != tensor:
            if current is not None and not (is_right and covered == current[2]):
                yield _coverage_finding(*current)
            current, covered, is_right = (tensor, content, size), 0, True
        if start is not None:
            is_right = is_right and start == covered and length > 0
            covered += length
    if current is not None and not (is_right and covered == current[2]):
        yield _coverage_finding(*current)


def _coverage_finding(tensor: int, content: bytes, size: int) -> Finding:
    text = f"the frames of tensor {tensor} ({content.hex()}) do not cover its {size} bytes exactly"
    return Finding("tensor_frames", content.hex(), text)


def check_bounds(reg: Registry, cursor: Cursor) -> Findings:
    """Frames lie between the header and the index of their pack, and do not overlap."""
    last = cursor.begin_after("")
    while True:
        with reg.db.read() as session:
            page = session.execute(
                select(Pack.id, Pack.size).where(Pack.id > last).order_by(Pack.id).limit(_PACKS)
            ).all()
            if not page:
                return
            yield from _bounds(session, dict(page))
        last = page[-1][0]
        cursor.reached(last)


def _bounds(session: ReadSession, packs: dict[str, int]) -> Findings:
    """packs: id -> size."""
    is_here = Frame.pack_id.in_(packs)
    counted = select(Frame.pack_id, func.count()).where(is_here).group_by(Frame.pack_id)
    counts = dict(session.execute(counted).all())
    rows = session.execute(
        select(Frame.pack_id, Frame.tensor_id, Frame.offset, Frame.length)
        .where(is_here)
        .order_by(Frame.pack_id, Frame.offset)
        .execution_options(yield_per=10_000)
    )
    current, end = "", 0
    for pack, tensor, offset, length in rows:
        if pack != current:
            current, end = pack, len(HEADER)
        last = packs[pack] - TRAILER_BYTES - counts[pack] * PACK_INDEX_BYTES
        if offset < end or length <= 0 or offset + length > last:
            text = f"the frame of tensor {tensor} at {offset} of pack {pack} overlaps or leaves it"
            yield Finding("frame_bounds", pack, text)
        end = offset + length

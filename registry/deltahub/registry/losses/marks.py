"""Marks of tensors that cannot be read, and of the files that need them.

A mark deletes nothing: rows of frames stay, and readers still try them. So a mark can be taken away
when the bytes come back. What is marked counts as missing wherever the hub says what it has, so the
next push sends it again.
"""

from collections.abc import Collection, Iterable
from typing import Final

from sqlalchemy import ColumnElement, and_, exists, or_, select, update
from sqlalchemy.orm import aliased

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, FileTensor, Frame, Pack, Tensor, TensorBase
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.losses import findings

# Values of Tensor.lost.
FRAMES: Final = "frames"
BASE: Final = "base"
_DAMAGE: Final = {
    "pack_missing": "its object is gone or cut short",
    "pack_hash": "its bytes have changed",
}


def is_needed_pack() -> ColumnElement[bool]:
    """SQL condition: the pack is live, or damaged and still has a frame that a row needs."""
    has_frames = exists(select(Frame.pack_id).where(Frame.pack_id == Pack.id))
    return or_(Pack.state == "live", and_(Pack.state == "damaged", has_frames))


def mark_packs(session: WriteSession, pack_ids: Collection[str], code: str | None) -> list[int]:
    """Mark live packs as damaged; returns the tensors that have frames in damaged ones of these.

    code: pack_missing or pack_hash, of the finding that is noted of each; None if the caller has
    noted one.
    """
    found: list[int] = []
    for batch in batches(pack_ids):
        marked = session.scalars(
            update(Pack)
            .where(Pack.id.in_(batch), Pack.state == "live")
            .values(state="damaged")
            .returning(Pack.id)
            .execution_options(synchronize_session=False)
        ).all()
        for pack_id in marked:
            if code is None:
                continue
            findings.report(session, "pack", pack_id, code, f"pack {pack_id}: {_DAMAGE[code]}")
        found += session.scalars(
            select(Frame.tensor_id)
            .join(Pack, Pack.id == Frame.pack_id)
            .where(Pack.id.in_(batch), Pack.state == "damaged")
            .distinct()
        )
    return found


def mark_tensors(session: WriteSession, tensor_ids: Iterable[int]) -> None:
    """Mark tensors whose own frames are lost, and so their deltas and their files."""
    ids = set(tensor_ids)
    _set(session, ids, FRAMES)
    _settle(session, ids)


def clear_marks(session: WriteSession, tensor_ids: Iterable[int]) -> None:
    """Take the marks from tensors whose own frames were read or stored again.

    Their deltas and files lose their marks, too, if nothing else that they need is lost.
    """
    ids = set(tensor_ids)
    if not ids:
        return
    findings.close_tensors(session, ids, "read or stored again")
    _set(session, ids, None)
    _settle_bases(session, ids)  # a base may still be lost
    _settle(session, ids)


def any_lost(session: ReadSession, tensor_ids: Iterable[int]) -> bool:
    return any(
        session.scalar(
            select(Tensor.id).where(Tensor.id.in_(batch), Tensor.lost.is_not(None)).limit(1)
        )
        is not None
        for batch in batches(tensor_ids)
    )


def _set(session: WriteSession, tensor_ids: set[int], lost: str | None) -> None:
    session.flush()
    for batch in batches(tensor_ids):
        session.execute(
            update(Tensor)
            .where(Tensor.id.in_(batch))
            .values(lost=lost)
            .execution_options(synchronize_session=False)
        )


def _settle(session: WriteSession, changed: set[int]) -> None:
    """Bring the marks of all deltas and files of these tensors in line with their own."""
    level = changed
    while level:
        deltas: set[int] = set()
        for batch in batches(level):
            deltas.update(
                session.scalars(select(TensorBase.tensor_id).where(TensorBase.base_id.in_(batch)))
            )
        level = _settle_bases(session, deltas)
        changed = changed | level
    _settle_files(session, changed)
    session.expire_all()


def _settle_bases(session: WriteSession, tensor_ids: set[int]) -> set[int]:
    """Mark those of these tensors that have a lost base, unmark the others; the changed ones."""
    base = aliased(Tensor)
    is_base_lost = exists(
        select(TensorBase.tensor_id)
        .join(base, base.id == TensorBase.base_id)
        .where(TensorBase.tensor_id == Tensor.id, base.lost.is_not(None))
    )
    changed: set[int] = set()
    for batch in batches(tensor_ids):
        for condition, value in (
            (Tensor.lost.is_(None) & is_base_lost, BASE),
            ((Tensor.lost == BASE) & ~is_base_lost, None),
        ):
            rows = session.scalars(
                update(Tensor)
                .where(Tensor.id.in_(batch), condition)
                .values(lost=value)
                .returning(Tensor.id)
                .execution_options(synchronize_session=False)
            )
            changed.update(rows)
    return changed


def _settle_files(session: WriteSession, tensor_ids: set[int]) -> None:
    """Bring the states of the files that need these tensors in line with the tensors' marks."""
    is_lost = exists(
        select(FileTensor.file_id)
        .join(Tensor, Tensor.id == FileTensor.tensor_id)
        .where(FileTensor.file_id == File.id, Tensor.lost.is_not(None))
    )
    for batch in batches(tensor_ids):
        needs = File.id.in_(select(FileTensor.file_id).where(FileTensor.tensor_id.in_(batch)))
        for condition, state in (
            ((File.state == "ingested") & is_lost, "lost"),
            # A file without a recipe has lost its upload.
            ((File.state == "lost") & File.recipe_tensor_id.is_not(None) & ~is_lost, "ingested"),
        ):
            session.execute(
                update(File)
                .where(needs, condition)
                .values(state=state)
                .execution_options(synchronize_session=False)
            )

"""Garbage of Xet uploads: expired xorbs, and rows of the chunk map."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, delete, exists, or_, select, update

from deltahub.registry import failpoints
from deltahub.registry.access.visibility import sharing_domains
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Landing, Repository, XetRange, Xorb
from deltahub.registry.db.session import WriteSession
from deltahub.registry.maintenance.gc.conditions import Moment
from deltahub.registry.registry import Registry
from deltahub.registry.storage.keys import xorb_key
from deltahub.registry.xet.epochs import advance_epoch
from deltahub.registry.xet.xorb import XorbIndex


def xorb_is_dead(moment: Moment) -> ColumnElement[bool]:
    """SQL condition: the xorb has expired, or its repository is deleted."""
    return or_(Xorb.expires_at < moment.expired, Xorb.repository_id.is_(None))


def range_is_dead() -> ColumnElement[bool]:
    """SQL condition: the hub does not have the file of this row of the chunk map any more."""
    in_file = exists(select(File.id).where(File.sha256 == XetRange.sha256))
    in_landing = exists(select(Landing.id).where(Landing.sha256 == XetRange.sha256))
    return ~in_file & ~in_landing


def remove_xorb(reg: Registry, xorb_id: str, moment: Moment) -> bool:
    """Condemn an expired xorb, delete its bytes, delete its row; False if it is needed again."""
    with reg.db.write() as session:
        condemned = session.execute(
            update(Xorb)
            .where(Xorb.id == xorb_id, xorb_is_dead(moment))
            .values(state="condemned")
            .returning(Xorb.repository_id, Xorb.hash, Xorb.chunks)
            .execution_options(synchronize_session=False)
        ).one_or_none()
        if condemned is not None:
            _advance_epoch_if_unmapped(session, *condemned)
    if condemned is None:
        return False
    failpoints.reached("gc.xorb.after_condemn")
    reg.store.delete(xorb_key(xorb_id))
    failpoints.reached("gc.xorb.after_delete")
    with reg.db.write() as session:
        session.execute(delete(Xorb).where(Xorb.id == xorb_id))
    return True


def remove_ranges(reg: Registry, ids: Sequence[int]) -> int:
    """Delete the dead ones of these rows of the chunk map; returns their number."""
    removed = 0
    for batch in batches(ids):
        with reg.db.write() as session:
            dead = session.scalars(
                delete(XetRange)
                .where(XetRange.id.in_(batch), range_is_dead())
                .returning(XetRange.id)
                .execution_options(synchronize_session=False)
            )
            removed += len(dead.all())
    return removed


def _advance_epoch_if_unmapped(
    session: WriteSession, repository_id: int | None, digest: bytes, chunks: bytes
) -> None:
    """Advance the epoch, so that clients send the xorb again, unless files hold all its chunks."""
    repository = None if repository_id is None else session.get(Repository, repository_id)
    if repository is None:
        return  # the repository was deleted
    ranges = session.execute(
        select(XetRange.first, XetRange.end)
        .where(
            XetRange.xorb == digest,
            XetRange.domain_id.in_(sharing_domains(session, repository)),
            ~range_is_dead(),
        )
        .order_by(XetRange.first)
    )
    covered = 0
    for first, end in ranges:
        if first > covered:
            break
        covered = max(covered, end)
    is_mapped = covered >= XorbIndex(chunks).n_chunks
    if not is_mapped:
        advance_epoch(session, repository.id)

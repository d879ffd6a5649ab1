"""Finds out that the store has lost packs of files before the hub says that it has these files."""

import logging
from collections.abc import Iterable

from sqlalchemy import select

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, FileTensor, Frame, Pack
from deltahub.registry.db.session import ReadSession
from deltahub.registry.losses.marks import mark_packs, mark_tensors
from deltahub.registry.losses.presence import check_store_is_there, is_missing
from deltahub.registry.packs.locations import closure
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)


def mark_missing(reg: Registry, hashes: Iterable[str]) -> bool:
    """Mark what is lost of the ingested files of these SHA-256s, if packs of theirs are missing.

    Returns whether something was marked. Only asks the store whether it has the packs, and reads
    nothing from them. StoreSeemsAway if the store has less than half of the hub's packs.
    """
    with reg.db.read() as session:
        packs = _packs_of(session, hashes)
    missing = [pack for pack in sorted(packs) if is_missing(reg, pack)]
    if not missing:
        return False
    with reg.db.read() as session:
        live = session.scalars(select(Pack.id).where(Pack.state == "live")).all()
    check_store_is_there(sum(is_missing(reg, pack) for pack in live), len(live))
    with reg.db.write() as session:
        tensors = mark_packs(session, missing)
        mark_tensors(session, tensors)
    log.error(
        "packs %s are missing from the store: their %d tensors are marked as lost; run deltahub "
        "fsck --repair, which names their files",
        ", ".join(missing),
        len(tensors),
    )
    return True


def _packs_of(session: ReadSession, hashes: Iterable[str]) -> set[str]:
    """The live packs that are needed to rebuild these files."""
    tensors: set[int] = set()
    for part in batches(hashes):
        files = select(File.id).where(File.sha256.in_(part), File.state == "ingested")
        tensors.update(
            session.scalars(select(FileTensor.tensor_id).where(FileTensor.file_id.in_(files)))
        )
    packs: set[str] = set()
    for batch in batches(closure(session, tensors)):
        packs.update(
            session.scalars(
                select(Frame.pack_id)
                .join(Pack, Pack.id == Frame.pack_id)
                .where(Frame.tensor_id.in_(batch), Pack.state == "live")
                .distinct()
            )
        )
    return packs

"""Finds the database row of an object of the store."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from deltahub.registry.db.models import Landing, Pack, Xorb
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.db.tables.stores import DeferredDeletion
from deltahub.registry.storage.keys import COPIES, LANDINGS, PACKS, XORBS


def is_known(session: Session, key: str) -> bool:
    """Whether the database has this object, or has it to be deleted later."""
    return has_row(session, key) or session.get(DeferredDeletion, key) is not None


def has_row(session: Session, key: str) -> bool:
    """Whether a pack, a second copy, a xorb or an upload of the database has this object."""
    row_id = key.rsplit("/", 1)[-1]
    if key.startswith(PACKS):
        return session.get(Pack, row_id) is not None
    if key.startswith(COPIES):
        return session.scalar(select(PackCopy.id).where(PackCopy.id == row_id)) is not None
    if key.startswith(XORBS):
        return session.get(Xorb, row_id) is not None
    return key.startswith(LANDINGS) and session.get(Landing, row_id) is not None

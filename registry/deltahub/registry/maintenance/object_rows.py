"""Finds the hub's own objects in a store, and the database row of an object."""

from collections.abc import Collection, Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Landing, Pack, Xorb
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.db.tables.spool import SpooledUpload
from deltahub.registry.db.tables.stores import DeferredDeletion
from deltahub.registry.storage.base import ObjectInfo, Store
from deltahub.registry.storage.keys import COPIES, LANDINGS, PACKS, SPOOL, XORBS, is_hub_key


def hub_objects(store: Store) -> Iterator[ObjectInfo]:
    """The objects of a store that a hub may have put there, in any order.

    What lies there under other names belongs to somebody else: nobody reports, copies or deletes
    it.
    """
    return (info for info in store.list("") if is_hub_key(info.key))


def lasting_objects(store: Store) -> Iterator[ObjectInfo]:
    """The same without those of unfinished uploads, which are written before any row names them."""
    return (info for info in hub_objects(store) if not info.key.startswith(SPOOL))


def is_known(session: Session, key: str) -> bool:
    """Whether the database has this object, or has it to be deleted later."""
    return has_row(session, key) or session.get(DeferredDeletion, key) is not None


def deferred_deletions(session: Session, keys: Collection[str]) -> set[str]:
    """Those of these objects that are to be deleted when no backup holds deletions any more."""
    found: set[str] = set()
    for batch in batches(keys):
        query = select(DeferredDeletion.key).where(DeferredDeletion.key.in_(batch))
        found.update(session.scalars(query))
    return found


def has_row(session: Session, key: str) -> bool:
    """Whether a pack, a second copy, a xorb or an upload of the database has this object."""
    row_id = key.rsplit("/", 1)[-1]
    if key.startswith(PACKS):
        return session.get(Pack, row_id) is not None
    if key.startswith(COPIES):
        return session.scalar(select(PackCopy.id).where(PackCopy.id == row_id)) is not None
    if key.startswith(XORBS):
        return session.get(Xorb, row_id) is not None
    if key.startswith(SPOOL):
        # The end of what came, or the whole of what may replace a damaged upload.
        is_named = (SpooledUpload.tail_id == row_id) | (SpooledUpload.landing_id == row_id)
        return session.scalar(select(SpooledUpload.landing_id).where(is_named)) is not None
    return key.startswith(LANDINGS) and session.get(Landing, row_id) is not None

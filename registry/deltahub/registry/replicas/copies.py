"""Second copies of packs: objects `copies/..` with the bytes of their packs.

A copy is written from bytes that have the pack's hash, read back, and only then used. Its row comes
before its object, and goes after it. A copy that is wrong is written again from its pack, and a
pack that is damaged or gone is put back from its copy: nothing wrong ever becomes visible, because
a write that ends with an error leaves no object.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from blake3 import blake3
from sqlalchemy import delete, exists, select, update

from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames.pack import verify_pack_hash
from deltahub.registry.db.models import Pack, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.scrub import PackCopy, Proof
from deltahub.registry.errors import DataLost
from deltahub.registry.failpoints import reached
from deltahub.registry.losses import findings
from deltahub.registry.packs.copy import object_chunks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound, ShortObject
from deltahub.registry.storage.keys import copy_key, pack_key
from deltahub.registry.storage.refusals import translated_store_errors

# A copy that is not finished after so long was given up by its writer.
_ABANDONED: Final = timedelta(days=1)


class WrongBytes(DataLost):
    """An object that should be copied does not have the pack's hash."""


def is_right(reg: Registry, key: str, digest: bytes) -> bool:
    """Whether the object is there and is the pack of this BLAKE3; StoreError if reading fails."""
    try:
        return verify_pack_hash(object_chunks(reg, key)) == digest
    except (CodecError, ObjectNotFound, ShortObject):
        return False


def make_copy(reg: Registry, pack_id: str) -> bool:
    """Give a live pack a second copy, if its bytes are right; False if it has or needs none.

    WrongBytes if the pack itself is damaged, or the copy does not read back.
    """
    with reg.db.write() as session:
        pack, row = session.get(Pack, pack_id), session.get(PackCopy, pack_id)
        if pack is None or pack.state != "live" or pack.hash is None:
            return False
        if row is not None and row.state != "writing":
            return False
        if row is None:
            session.add(PackCopy(pack_id=pack_id, state="writing", size=pack.size))
        digest = pack.hash
    reached("copies.before_put")
    _put(reg, copy_key(pack_id), pack_key(pack_id), digest)
    reached("copies.after_put")
    if not is_right(reg, copy_key(pack_id), digest):
        raise WrongBytes(f"the second copy of pack {pack_id} did not come back as it was written")
    with reg.db.write() as session:
        kept = session.scalar(
            update(PackCopy)
            .where(PackCopy.pack_id == pack_id, PackCopy.state == "writing")
            .values(state="live")
            .returning(PackCopy.pack_id)
            .execution_options(synchronize_session=False)
        )
        note_proved(session, "copy", pack_id, "written and read back")
        reached("copies.before_commit")
    reached("copies.after_commit")
    return kept is not None


def restore_copy(reg: Registry, pack_id: str, digest: bytes) -> None:
    """Write a wrong or missing copy again from its pack; WrongBytes if that is damaged."""
    _put(reg, copy_key(pack_id), pack_key(pack_id), digest)
    reached("copies.restored")
    if not is_right(reg, copy_key(pack_id), digest):
        raise WrongBytes(f"the second copy of pack {pack_id} did not come back as it was written")
    with reg.db.write() as session:
        note_proved(session, "copy", pack_id, "written again from its pack")


def restore_pack(reg: Registry, pack_id: str, digest: bytes) -> bool:
    """Put a damaged or missing pack's object back from its second copy.

    False if it has none, or none with the right bytes: then nothing was changed. The rows of the
    pack are the caller's to change.
    """
    with reg.db.read() as session:
        copy = session.get(PackCopy, pack_id)
    if copy is None or copy.state != "live":
        return False
    try:
        _put(reg, pack_key(pack_id), copy_key(pack_id), digest)
    except WrongBytes:
        return False
    reached("copies.pack_restored")
    return is_right(reg, pack_key(pack_id), digest)


def drop_copy(reg: Registry, pack_id: str) -> None:
    """Delete the second copy of a pack: first nobody may use it, then its object, then its row."""
    with reg.db.write() as session:
        row = session.get(PackCopy, pack_id)
        if row is None:
            return
        row.state = "condemned"
    reached("copies.after_condemn")
    reg.store.delete(copy_key(pack_id))
    reached("copies.after_delete")
    with reg.db.write() as session:
        session.execute(delete(PackCopy).where(PackCopy.pack_id == pack_id))


def leftover_copies(session: ReadSession, pack_id: str | None = None) -> list[tuple[str, int]]:
    """(pack, bytes) of copies that are not used: condemned ones, those of condemned packs, and
    those that were begun more than a day ago.

    pack_id: only of this pack.
    """
    has_pack = exists(
        select(Pack.id).where(Pack.id == PackCopy.pack_id, Pack.state.in_(("live", "damaged")))
    )
    is_abandoned = (PackCopy.state == "writing") & (PackCopy.created_at < utc_now() - _ABANDONED)
    query = select(PackCopy.pack_id, PackCopy.size).where(
        (PackCopy.state == "condemned") | is_abandoned | ~has_pack
    )
    if pack_id is not None:
        query = query.where(PackCopy.pack_id == pack_id)
    return [(pack, size) for pack, size in session.execute(query)]


def is_in_use(session: ReadSession, pack_id: str) -> bool:
    """Whether a copy is none of leftover_copies()."""
    return pack_id not in dict(leftover_copies(session, pack_id))


def note_proved(session: WriteSession, kind: str, object_id: str, how: str) -> int:
    """Note that an object's bytes were read and are right, and close its findings; how many."""
    now = utc_now()
    proof = session.get(Proof, (kind, object_id))
    if proof is None:
        proof = Proof(kind=kind, object_id=object_id)
        session.add(proof)
    proof.checked_at = proof.proved_at = now
    return findings.close(session, kind, [object_id], how)


def _put(reg: Registry, key: str, source: str, digest: bytes) -> None:
    with translated_store_errors():
        try:
            reg.store.put(key, _verified(reg, source, digest))
        except (ObjectNotFound, ShortObject) as exc:
            raise WrongBytes(f"{source} is gone or cut short: {exc}") from exc


def _verified(reg: Registry, key: str, digest: bytes) -> Iterator[memoryview]:
    """The object's bytes. At their end, WrongBytes if they were not those of the pack: the put
    that takes them then fails, and nothing of it is visible.
    """
    found = blake3()
    for piece in object_chunks(reg, key):
        found.update(piece)
        yield piece
    if found.digest() != digest:
        raise WrongBytes(f"{key} has other bytes than its pack had")

"""Second copies of packs: objects `copies/..` with the bytes of their packs.

A copy is written from bytes that have the pack's hash, read back, and only then used. Its row comes
before its object, and goes after it. Each copy has a random id, which is in its key: who deletes
the object of an earlier copy of the same pack, however late, does not delete this one's. A copy
that is wrong is written again from its pack, and a pack that is damaged or gone is put back from
its copy: nothing wrong ever becomes visible, because a write that ends with an error leaves no
object.
"""

import secrets
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
from deltahub.registry.errors import DataLost, StorageFull, Unavailable
from deltahub.registry.failpoints import reached
from deltahub.registry.losses import findings, second_copies
from deltahub.registry.packs.copy import object_chunks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound, ShortObject, StoreError
from deltahub.registry.storage.keys import pack_key, second_copy_key
from deltahub.registry.storage.refusals import translated_store_errors

# A copy that is not finished after so long was given up by its writer.
_ABANDONED: Final = timedelta(days=1)
# A store that has no room, or that fails to read or write an object. The next attempt may succeed.
PASSING: Final = (StorageFull, Unavailable, StoreError)


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

    WrongBytes if the pack itself is damaged, or the copy does not read back; one of PASSING.
    """
    with reg.db.write() as session:
        pack, row = session.get(Pack, pack_id), session.get(PackCopy, pack_id)
        if pack is None or pack.state != "live" or pack.hash is None:
            return False
        if row is not None and row.state != "writing":
            return False
        if row is None:
            row = PackCopy(
                pack_id=pack_id, id=secrets.token_hex(16), state="writing", size=pack.size
            )
            session.add(row)
        else:  # gc may not call this copy abandoned because an earlier writer died
            row.created_at = utc_now()
        copy_id, digest = row.id, pack.hash
    key = second_copy_key(copy_id)
    reached("copies.before_put")
    _put(reg, key, pack_key(pack_id), digest)
    reached("copies.after_put")
    if not is_right(reg, key, digest):
        raise WrongBytes(f"the second copy of pack {pack_id} did not come back as it was written")
    with reg.db.write() as session:
        kept = session.scalar(
            update(PackCopy)
            .where(PackCopy.id == copy_id, PackCopy.state == "writing")
            .values(state="live")
            .returning(PackCopy.pack_id)
            .execution_options(synchronize_session=False)
        )
        if kept is not None:
            note_proved(session, "copy", pack_id, "written and read back")
        reached("copies.before_commit")
    reached("copies.after_commit")
    if kept is None:
        _delete_unless_live(reg, copy_id)
    return kept is not None


def restore_copy(reg: Registry, pack_id: str, digest: bytes) -> bool:
    """Write a wrong or missing copy again from its pack; False if the pack needs none any more.

    WrongBytes if the pack is damaged, too; one of PASSING.
    """
    key = second_copies.key_of(reg, pack_id)
    if key is None:
        return False
    _put(reg, key, pack_key(pack_id), digest)
    reached("copies.restored")
    if second_copies.key_of(reg, pack_id) != key:  # gc has dropped it meanwhile
        _delete_unless_live(reg, key.rpartition("/")[2])
        return False
    if not is_right(reg, key, digest):
        raise WrongBytes(f"the second copy of pack {pack_id} did not come back as it was written")
    with reg.db.write() as session:
        note_proved(session, "copy", pack_id, "written again from its pack")
    return True


def restore_pack(reg: Registry, pack_id: str, digest: bytes, notes: list[str]) -> bool:
    """Put a damaged or missing pack's object back from its second copy.

    False if it has none, or none with the right bytes; or if the copy cannot be read now, or the
    pack cannot be written: a note says so then, because a later attempt may succeed. The rows of
    the pack are the caller's to change.
    """
    key = second_copies.key_of(reg, pack_id)
    if key is None:
        return False
    try:
        _put(reg, pack_key(pack_id), key, digest)
        reached("copies.pack_restored")
        return is_right(reg, pack_key(pack_id), digest)
    except WrongBytes:
        return False
    except PASSING as exc:
        notes.append(f"pack {pack_id} is not put back from its second copy now: {exc}")
        return False


def drop_copy(reg: Registry, pack_id: str) -> None:
    """Delete the second copy of a pack: first nobody may use it, then its object, then its row."""
    with reg.db.write() as session:
        row = session.get(PackCopy, pack_id)
        if row is None:
            return
        row.state, copy_id = "condemned", row.id
    reached("copies.after_condemn")
    reg.store.delete(second_copy_key(copy_id))
    reached("copies.after_delete")
    with reg.db.write() as session:  # not the row of a copy that was begun meanwhile
        session.execute(
            delete(PackCopy).where(PackCopy.id == copy_id, PackCopy.state == "condemned")
        )


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


def _delete_unless_live(reg: Registry, copy_id: str) -> None:
    """Delete what was written for a row that was condemned meanwhile. Live is the row only if
    another writer went on with it, and finished first.
    """
    is_live = (PackCopy.id == copy_id) & (PackCopy.state == "live")
    with reg.db.read() as session:
        if session.scalar(select(PackCopy.id).where(is_live)) is not None:
            return
    reg.store.delete(second_copy_key(copy_id))


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

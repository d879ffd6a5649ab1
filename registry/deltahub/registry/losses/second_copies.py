"""What readers ask about second copies of packs. replicas/ makes and deletes them."""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.tables.scrub import PackCopy, Proof
from deltahub.registry.errors import RegistryError
from deltahub.registry.losses import findings
from deltahub.registry.storage.base import ObjectNotFound
from deltahub.registry.storage.keys import second_copy_key

if TYPE_CHECKING:
    from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

# The time of the last check of an object that scrub should read first.
AT_ONCE: Final = datetime(1970, 1, 1, tzinfo=UTC)


def is_there(reg: "Registry", pack_id: str) -> bool:
    """Whether the pack has a finished second copy, as far as the database knows."""
    return key_of(reg, pack_id) is not None


def key_of(reg: "Registry", pack_id: str) -> str | None:
    """The key of the pack's finished second copy; None without one."""
    with reg.db.read() as session:
        copy = session.get(PackCopy, pack_id)
    return second_copy_key(copy.id) if copy is not None and copy.state == "live" else None


def is_whole(reg: "Registry", pack_id: str, size: int) -> bool:
    """Whether the pack has a second copy of `size` bytes in the store, from which readers read."""
    key = key_of(reg, pack_id)
    if key is None:
        return False
    try:
        return reg.store.size(key) == size
    except ObjectNotFound:
        return False


def read_first(session: WriteSession, pack_ids: Iterable[str]) -> None:
    """Let the next scrub begin with these packs."""
    for pack_id in pack_ids:
        proof = session.get(Proof, ("pack", pack_id))
        if proof is None:
            proof = Proof(kind="pack", object_id=pack_id)
            session.add(proof)
        proof.checked_at = AT_ONCE
    session.flush()


def ask_for_repair(reg: "Registry", pack_id: str, why: Exception) -> None:
    """Note that a reader met damage in a pack, so that the next scrub reads it first."""
    code = "pack_missing" if isinstance(why, ObjectNotFound) else "pack_hash"
    try:
        with reg.db.read() as session:
            affected = findings.affected_by(session, "pack", pack_id)
        with reg.db.write() as session:
            text = findings.text_of("pack", pack_id, why)
            findings.report(session, "pack", pack_id, code, text, affected)
            read_first(session, [pack_id])
    except RegistryError as error:  # the reader gets its bytes all the same
        log.warning("pack %s: its damage cannot be noted: %s", pack_id, error)

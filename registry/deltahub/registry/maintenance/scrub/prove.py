"""Reads one object and compares it with its hash. Changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import select

from deltahub.codecs.errors import CodecError
from deltahub.registry.db.models import Frame, Landing, Pack, Tensor, Xorb
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import RegistryError, Unavailable
from deltahub.registry.landings.reader import hashes_of
from deltahub.registry.losses.findings import text_of
from deltahub.registry.losses.marks import is_needed_pack
from deltahub.registry.maintenance.fsck.bytes import check_tensor
from deltahub.registry.maintenance.fsck.findings import Finding
from deltahub.registry.maintenance.fsck.objects import check_index, stored_size
from deltahub.registry.registry import Registry
from deltahub.registry.replicas.copies import is_right
from deltahub.registry.storage.base import (
    ObjectNotFound,
    ShortObject,
    StoreError,
    StoreUnavailable,
)
from deltahub.registry.storage.keys import landing_key, pack_key, second_copy_key, xorb_key
from deltahub.registry.xet.hashes import to_text
from deltahub.registry.xet.receive_xorb import root_in_store
from deltahub.registry.xet.xorb import XorbIndex


@dataclass(frozen=True)
class Proved:
    """The outcome for one object: damage, or None if its bytes are right."""

    damage: Finding | None


def prove(reg: Registry, kind: str, object_id: str) -> Proved | None:
    """Read an object; None if it needs no proof any more. What is wrong is read twice.

    StoreUnavailable if the store does not say.
    """
    proved = _prove(reg, kind, object_id)
    if proved is not None and proved.damage is not None:
        proved = _prove(reg, kind, object_id)
    return proved


def _prove(reg: Registry, kind: str, object_id: str) -> Proved | None:
    return {"pack": _pack, "copy": _copy, "landing": _landing, "xorb": _xorb}[kind](reg, object_id)


def _pack(reg: Registry, pack_id: str) -> Proved | None:
    with reg.db.read() as session:
        pack = session.scalar(select(Pack).where(Pack.id == pack_id, is_needed_pack()))
    if pack is None or pack.hash is None:
        return None
    found = stored_size(reg, pack_key(pack_id))
    if found is None:
        text = f"the object of pack {pack_id} is gone"
        return Proved(Finding("pack_missing", pack_id, text))
    if found != pack.size:
        text = f"pack {pack_id} has {found} bytes; its row says {pack.size}"
        return Proved(Finding("pack_size", pack_id, text))
    if not is_right(reg, pack_key(pack_id), pack.hash):
        return Proved(Finding("pack_hash", pack_id, f"the bytes of pack {pack_id} have changed"))
    damage = next(check_index(reg, pack_id, pack.size), None)
    if damage is not None and damage.code == "object_unreadable":
        raise StoreUnavailable(damage.text)
    return Proved(damage)


def _copy(reg: Registry, pack_id: str) -> Proved | None:
    with reg.db.read() as session:
        copy, pack = session.get(PackCopy, pack_id), session.get(Pack, pack_id)
    if copy is None or copy.state != "live" or pack is None or pack.hash is None:
        return None
    key = second_copy_key(copy.id)
    found = stored_size(reg, key)
    if found is None:
        text = f"the second copy of pack {pack_id} is gone"
        return Proved(Finding("copy_missing", pack_id, text))
    if found != pack.size:
        text = f"the second copy of pack {pack_id} has {found} bytes, not {pack.size}"
        return Proved(Finding("copy_size", pack_id, text))
    if not is_right(reg, key, pack.hash):
        text = f"the second copy of pack {pack_id} has other bytes than the pack had"
        return Proved(Finding("copy_hash", pack_id, text))
    return Proved(None)


def _landing(reg: Registry, landing_id: str) -> Proved | None:
    with reg.db.read() as session:
        landing = session.get(Landing, landing_id)
    if landing is None or landing.state not in ("complete", "damaged"):
        return None
    sha256 = landing.sha256
    found = stored_size(reg, landing_key(landing_id))
    if found is None:
        text = f"the bytes of the complete upload {sha256} are gone"
        return Proved(Finding("landing_missing", landing_id, text))
    if found != landing.size:
        text = f"the upload {sha256} has {found} bytes; its row says {landing.size}"
        return Proved(Finding("landing_size", landing_id, text))
    try:
        hashes = hashes_of(reg, landing_key(landing_id), landing.size)
    except Unavailable as exc:
        if isinstance(exc.__cause__, StoreUnavailable):  # not the database
            raise exc.__cause__ from None
        raise
    if hashes is None or hashes.sha256 != sha256:
        text = f"the upload {sha256} now reads as {hashes.sha256 if hashes else 'nothing'}"
        return Proved(Finding("landing_hash", landing_id, text))
    return Proved(None)


def _xorb(reg: Registry, xorb_id: str) -> Proved | None:
    with reg.db.read() as session:
        xorb = session.get(Xorb, xorb_id)
    if xorb is None or xorb.state != "live":
        return None
    found = stored_size(reg, xorb_key(xorb_id))
    if found is None:
        return Proved(Finding("xorb_missing", xorb_id, f"the object of the xorb {xorb_id} is gone"))
    if found != xorb.size:
        text = f"xorb {xorb_id} has {found} bytes; its row says {xorb.size}"
        return Proved(Finding("xorb_size", xorb_id, text))
    try:
        is_right_now = root_in_store(reg, xorb_id, XorbIndex(xorb.chunks)) == xorb.hash
    except (ObjectNotFound, ShortObject):
        is_right_now = False
    if not is_right_now:
        text = f"the bytes of xorb {to_text(xorb.hash)} have changed"
        return Proved(Finding("xorb_hash", xorb_id, text))
    return Proved(None)


def decode(reg: Registry, pack_id: str) -> Iterator[tuple[int, Finding]]:
    """(tensor, what is wrong) of the tensors with frames in a pack that do not decode to their
    BLAKE3. Those that are marked as lost are left out.
    """
    reader = FileReader(reg)
    reader.marks_damage = False
    with reg.db.read() as session:
        tensors = session.execute(
            select(Tensor.id, Tensor.hash)
            .join(Frame, Frame.tensor_id == Tensor.id)
            .where(Frame.pack_id == pack_id, Tensor.lost.is_(None))
            .order_by(Tensor.depth, Tensor.id)
            .distinct()
        ).all()
    for tensor_id, content in tensors:
        try:
            found = list(check_tensor(reg, reader, tensor_id, content))
        except (RegistryError, CodecError, StoreError) as exc:
            text = text_of("tensor", content.hex(), exc)
            found = [Finding("tensor_unreadable", content.hex(), text)]
        yield from ((tensor_id, each) for each in found)

"""Compares objects with rows: presence, sizes, and the indexes of packs."""

from collections.abc import Iterator

from sqlalchemy import select

from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames.pack import read_index
from deltahub.registry.db.models import Frame, Landing, Pack, Tensor, Xorb
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.maintenance.fsck.cursor import Cursor
from deltahub.registry.maintenance.fsck.findings import Finding, Findings, code_of
from deltahub.registry.maintenance.object_rows import is_known, lasting_objects
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound, StoreError
from deltahub.registry.storage.keys import landing_key, pack_key, second_copy_key, xorb_key


def check_objects(reg: Registry) -> Findings:
    """Check that live packs, their second copies, live xorbs and complete uploads have objects of
    the right size, and that each object has a row.
    """
    sizes = {item.key: item.size for item in lasting_objects(reg.store)}
    with reg.db.read() as session:
        packs = session.execute(select(Pack.id, Pack.size, Pack.state)).all()
        landings = session.execute(select(Landing.id, Landing.size, Landing.state)).all()
        xorbs = session.execute(select(Xorb.id, Xorb.size, Xorb.state)).all()
        copies = session.scalars(select(PackCopy)).all()
    for pack_id, size, state in packs:
        found = sizes.pop(pack_key(pack_id), None)
        if state == "live" and found != size:
            yield from _check_pack(reg, pack_id)
    for landing_id, size, state in landings:
        found = sizes.pop(landing_key(landing_id), None)
        if state == "complete" and found != size:
            yield from _check_landing(reg, landing_id)
    for xorb_id, size, state in xorbs:
        found = sizes.pop(xorb_key(xorb_id), None)
        if state == "live" and found != size:
            yield from _check_xorb(reg, xorb_id)
    for copy in copies:
        found = sizes.pop(second_copy_key(copy.id), None)
        if copy.state == "live" and found != copy.size:
            yield from _check_copy(reg, copy)
    for key, size in sizes.items():
        yield from _check_unknown(reg, key, size)


def check_indexes(reg: Registry, cursor: Cursor) -> Findings:
    """Check that the index of each live pack lists all frames that rows place in it."""
    for pack_id, size in live_packs(reg, cursor):
        yield from check_index(reg, pack_id, size)


def check_index(reg: Registry, pack_id: str, size: int) -> Findings:
    """The same of one pack of `size` bytes."""
    with reg.db.read() as session:
        rows = session.execute(
            select(Frame.offset, Frame.length, Tensor.hash)
            .join(Tensor, Tensor.id == Frame.tensor_id)
            .where(Frame.pack_id == pack_id)
        ).all()

    def read_at(offset: int, length: int) -> bytearray:
        out = bytearray(length)
        if length:
            reg.store.get_into(pack_key(pack_id), offset, memoryview(out))
        return out

    try:
        index = {(e.offset, e.length, e.tensor) for e in read_index(read_at, size)}
    except ObjectNotFound:
        yield from _check_pack(reg, pack_id)  # a stale list may still have had it
        return
    except (CodecError, StoreError) as exc:
        code = code_of(exc, "pack_index")
        yield Finding(code, pack_id, f"the index of pack {pack_id}: {exc}")
        return
    for offset, length, content in rows:
        if (offset, length, content) not in index:
            text = (
                f"pack {pack_id} has no frame of tensor {content.hex()} "
                f"at {offset}..{offset + length}"
            )
            yield Finding("pack_index", pack_id, text)


def live_packs(reg: Registry, cursor: Cursor) -> Iterator[tuple[str, int]]:
    """(id, bytes) of each live pack; one transaction for 500 packs, so that the hub can write."""
    last = cursor.begin_after("")
    while True:
        with reg.db.read() as session:
            page = session.execute(
                select(Pack.id, Pack.size)
                .where(Pack.state == "live", Pack.id > last)
                .order_by(Pack.id)
                .limit(500)
            ).all()
        if not page:
            return
        yield from page
        last = page[-1][0]
        cursor.reached(last)


def stored_size(reg: Registry, key: str) -> int | None:
    try:
        return reg.store.size(key)
    except ObjectNotFound:
        return None


def _check_pack(reg: Registry, pack_id: str) -> Findings:
    """Read the row and the size again, because gc or a writer may have changed them."""
    found = stored_size(reg, pack_key(pack_id))
    with reg.db.read() as session:
        row = session.get(Pack, pack_id)
    if row is None or row.state != "live" or row.size == found:
        return
    if found is None:
        yield Finding("pack_missing", pack_id, f"the object of the live pack {pack_id} is gone")
    else:
        text = f"pack {pack_id} has {found} bytes; its row says {row.size}"
        yield Finding("pack_size", pack_id, text)


def _check_copy(reg: Registry, copy: PackCopy) -> Findings:
    found, pack_id = stored_size(reg, second_copy_key(copy.id)), copy.pack_id
    with reg.db.read() as session:
        row = session.get(PackCopy, pack_id)
    if row is None or row.id != copy.id or row.state != "live" or row.size == found:
        return
    if found is None:
        yield Finding("copy_missing", pack_id, f"the second copy of pack {pack_id} is gone")
    else:
        text = f"the second copy of pack {pack_id} has {found} bytes, not {row.size}"
        yield Finding("copy_size", pack_id, text)


def _check_landing(reg: Registry, landing_id: str) -> Findings:
    found = stored_size(reg, landing_key(landing_id))
    with reg.db.read() as session:
        row = session.get(Landing, landing_id)
    if row is None or row.state != "complete" or row.size == found:
        return
    if found is None:
        text = f"the bytes of the complete upload {row.sha256} are gone"
        yield Finding("landing_missing", row.sha256, text)
    else:
        text = f"the upload {row.sha256} has {found} bytes; its row says {row.size}"
        yield Finding("landing_size", row.sha256, text)


def _check_xorb(reg: Registry, xorb_id: str) -> Findings:
    found = stored_size(reg, xorb_key(xorb_id))
    with reg.db.read() as session:
        row = session.get(Xorb, xorb_id)
    if row is None or row.state != "live" or row.size == found:
        return
    if found is None:
        yield Finding("xorb_missing", xorb_id, f"the object of the xorb {xorb_id} is gone")
    else:
        text = f"xorb {xorb_id} has {found} bytes; its row says {row.size}"
        yield Finding("xorb_size", xorb_id, text)


def _check_unknown(reg: Registry, key: str, size: int) -> Findings:
    with reg.db.read() as session:
        if is_known(session, key):
            return
    if stored_size(reg, key) is not None:
        yield Finding("unknown_object", key, f"no row knows the object {key} ({size} bytes)")

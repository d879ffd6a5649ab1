"""Rewrites sparse packs without their dead bytes: frames are copied, never decoded."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import exists, select, update

from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames.pack import PackSummary, PackWriter, verify_pack_hash
from deltahub.registry.db.models import Frame, Pack, utc_now
from deltahub.registry.failpoints import reached
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError, StoreUnavailable
from deltahub.registry.storage.disk import make_durable, new_file
from deltahub.registry.storage.keys import pack_key

_READ_BYTES = 4 << 20


@dataclass
class Repacked:
    """The result of a repack. notes: about packs that were skipped because they are damaged."""

    condemned: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Moved:
    """A frame's old location and its new offset."""

    tensor_id: int
    start: int
    pack_id: str
    offset: int
    new_offset: int


def repack(reg: Registry, packs: Sequence[str]) -> Repacked:
    """Copy the frames that are still needed into fuller packs; condemn the old packs.

    A reader sees a whole frame at its old or its new location. Memory: one frame.
    """
    result = Repacked()
    by_domain: dict[int, list[str]] = {}
    with reg.db.read() as session:
        rows = session.execute(
            select(Pack.id, Pack.domain_id, Pack.hash).where(
                Pack.id.in_(packs), Pack.state == "live"
            )
        ).all()
    for pack_id, domain_id, digest in rows:
        if digest is not None and _is_intact(reg, pack_id, digest):
            by_domain.setdefault(domain_id, []).append(pack_id)
        else:
            # A copy of damaged bytes would get a new, valid hash.
            result.notes.append(f"pack {pack_id} does not check and stays: run deltahub fsck")
    for domain_id, sources in by_domain.items():
        _copy(reg, domain_id, sources)
        result.condemned += _condemn_empty(reg, sources)
    return result


def pack_chunks(reg: Registry, pack_id: str) -> Iterator[memoryview]:
    """The pack's bytes in parts of 4 MiB. Each part overwrites the one before."""
    return object_chunks(reg, pack_key(pack_id))


def object_chunks(reg: Registry, key: str) -> Iterator[memoryview]:
    """The same of any object."""
    size = reg.store.size(key)
    buffer = memoryview(bytearray(min(size, _READ_BYTES)))
    for start in range(0, size, _READ_BYTES):
        part = buffer[: min(_READ_BYTES, size - start)]
        reg.store.get_into(key, start, part)
        yield part


def _is_intact(reg: Registry, pack_id: str, digest: bytes) -> bool:
    """Whether the stored pack has this hash. StoreUnavailable, which says nothing about it."""
    try:
        return verify_pack_hash(pack_chunks(reg, pack_id)) == digest
    except StoreUnavailable:
        raise
    except (CodecError, StoreError):
        return False


def _copy(reg: Registry, domain_id: int, sources: Sequence[str]) -> None:
    with reg.db.read() as session:
        frames = session.execute(
            select(Frame.tensor_id, Frame.start, Frame.pack_id, Frame.offset, Frame.length)
            .where(Frame.pack_id.in_(sources))
            .order_by(Frame.pack_id, Frame.offset)
        ).all()
    position = 0
    while position < len(frames):
        new_id = secrets.token_hex(16)
        path = reg.scratch / new_id
        moved: list[_Moved] = []
        try:
            with new_file(reg.disk, path) as sink:
                writer = PackWriter(sink)
                for tensor_id, start, pack_id, offset, length in frames[position:]:
                    if moved and not (
                        writer.fits(length) and writer.size + length <= reg.settings.pack_bytes
                    ):
                        break
                    data = memoryview(bytearray(length))
                    reg.store.get_into(pack_key(pack_id), offset, data)
                    moved.append(_Moved(tensor_id, start, pack_id, offset, writer.add(data)))
                summary = writer.finish()
                make_durable(reg.disk, sink)
            position += len(moved)
            _publish(reg, domain_id, new_id, path, summary)
        finally:
            with suppress(FileNotFoundError):  # take_file has moved it into the store
                reg.disk.unlink(path)
        _switch(reg, new_id, moved)


def _publish(reg: Registry, domain_id: int, new_id: str, path: Path, summary: PackSummary) -> None:
    """Write the pack's row, put the object, and verify that it reads back as it was written."""
    with reg.db.write() as session:
        session.add(
            Pack(
                id=new_id,
                domain_id=domain_id,
                state="writing",
                size=summary.size,
                hash=summary.hash,
            )
        )
    reached("repack.before_put")
    reg.store.take_file(pack_key(new_id), path)
    reached("repack.after_put")
    if not _is_intact(reg, new_id, summary.hash):
        raise AssertionError(f"pack {new_id} does not read back as it was written")


def _switch(reg: Registry, new_id: str, moved: Sequence[_Moved]) -> None:
    """Point frames at their copies, except frames that have moved since they were copied."""
    with reg.db.write() as session:
        is_ours = session.scalars(
            update(Pack)
            .where(Pack.id == new_id, Pack.state == "writing")
            .values(state="live")
            .returning(Pack.id)
            .execution_options(synchronize_session=False)
        ).all()
        if not is_ours:
            return  # gc has condemned the new pack in the meantime: the frames stay in the old one
        for frame in moved:
            session.execute(
                update(Frame)
                .where(
                    Frame.tensor_id == frame.tensor_id,
                    Frame.start == frame.start,
                    Frame.pack_id == frame.pack_id,
                    Frame.offset == frame.offset,
                )
                .values(pack_id=new_id, offset=frame.new_offset)
                .execution_options(synchronize_session=False)
            )
        reached("repack.before_commit")
    reached("repack.after_commit")


def _condemn_empty(reg: Registry, packs: Sequence[str]) -> int:
    has_frames = exists(select(Frame.pack_id).where(Frame.pack_id == Pack.id))
    with reg.db.write() as session:
        condemned = session.scalars(
            update(Pack)
            .where(Pack.id.in_(packs), Pack.state == "live", ~has_frames)
            .values(state="condemned", condemned_at=utc_now())
            .returning(Pack.id)
            .execution_options(synchronize_session=False)
        )
        return len(condemned.all())

"""Moves what can still be read out of a damaged pack, so that gc can delete the pack.

Without it the pack would stay for the sake of its right frames, and every scrub and backup would
name it for ever.
"""

from collections.abc import Iterator, Sequence

from blake3 import blake3
from sqlalchemy import exists, select, update

from deltahub.codecs.errors import CodecError
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import Frame, Pack, Tensor
from deltahub.registry.db.session import WriteSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import RegistryError
from deltahub.registry.failpoints import reached
from deltahub.registry.losses import findings
from deltahub.registry.packs.locations import TensorLocation
from deltahub.registry.packs.switch import store_and_switch
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError


def salvage(reg: Registry, pack_id: str, notes: list[str]) -> int:
    """Copy the readable tensors of a damaged pack to new packs; returns their number.

    Their frames are copied as they are. A tensor is pointed at its copy only when the copy was read
    back from the store and decoded to the tensor's BLAKE3. Tensors that are marked as lost stay. If
    reading or writing fails, a note says so, and nothing changes. Memory: a few frames.
    """
    reader = FileReader(reg)
    reader.marks_damage = False
    with reg.db.read() as session:
        pack = session.get(Pack, pack_id)
        tensors = session.scalars(
            select(Tensor.id)
            .join(Frame, Frame.tensor_id == Tensor.id)
            .where(Frame.pack_id == pack_id, Tensor.lost.is_(None))
            .order_by(Tensor.id)
            .distinct()
        ).all()
    if pack is None or pack.state != "damaged":
        return 0
    moved: list[TensorLocation] = []
    try:
        with PackSpool(reg, reader, pack.domain_id) as spool:
            for tensor in _readable(reader, tensors):
                for frame in tensor.frames:
                    spool.add(reader.frames.read(frame, 0, frame.length))
                moved.append(tensor)
            if moved:
                store_and_switch(reg, spool, lambda session, sealed: _point(session, sealed, moved))
    except (RegistryError, CodecError, StoreError) as exc:
        notes.append(f"what can be read of pack {pack_id} stays there for now: {exc}")
        return 0
    reached("salvage.after_commit")
    _close_if_empty(reg, pack_id)
    return len(moved)


def _readable(reader: FileReader, tensor_ids: Sequence[int]) -> Iterator[TensorLocation]:
    """Those of the tensors that decode to their BLAKE3. The others keep the pack as it is."""
    for batch in batches(tensor_ids, PART_TENSORS):
        located = reader.locate(batch)
        for tensor in (located[each] for each in batch if each in located):
            digest, places = blake3(), {tensor.id: tensor}
            try:
                for piece in reader.stream_tensor(places, tensor.id, 0, tensor.size):
                    digest.update(piece)
            except (RegistryError, CodecError, StoreError):
                continue
            if digest.digest() == tensor.hash and places[tensor.id] == tensor:
                yield tensor


def _point(session: WriteSession, sealed: SealedPacks, moved: Sequence[TensorLocation]) -> None:
    """Point the frames' rows at the copies, except those that have moved meanwhile."""
    for tensor in moved:
        copies = sealed.tensors[tensor.hash].frames
        for frame, copy in zip(tensor.frames, copies, strict=True):
            session.execute(
                update(Frame)
                .where(
                    Frame.tensor_id == tensor.id,
                    Frame.start == frame.start,
                    Frame.pack_id == frame.pack_id,
                    Frame.offset == frame.offset,
                )
                .values(pack_id=copy.pack_id, offset=copy.offset)
                .execution_options(synchronize_session=False)
            )
    reached("salvage.before_commit")


def _close_if_empty(reg: Registry, pack_id: str) -> None:
    with reg.db.write() as session:
        if not session.scalar(select(exists().where(Frame.pack_id == pack_id))):
            findings.close(session, "pack", [pack_id], "what it had was moved to a new pack")

"""A small hub with a base, a fine-tune and notes, whose packs a test loses or damages."""

from sqlalchemy import select

from deltahub.codecs.frames import parse_header
from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import File, Frame
from deltahub.registry.storage.keys import pack_key
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested, read_file, stored_tensors

PATH = "model.safetensors"
BASE = tiny.to_file(tiny.base())
TUNE = tiny.to_file(tiny.finetune(1e-5))
NOTES = b"trained at home\n" * 400


def fill(reg: Registry, ann: Caller) -> dict[str, int]:
    """Push the files of the hub; repository -> row of its revision."""
    return {
        "ann/notes": push_ingested(reg, ann, "ann/notes", {"notes.txt": NOTES}),
        "ann/base": push_ingested(reg, ann, "ann/base", {PATH: BASE}),
        "ann/tune": push_ingested(reg, ann, "ann/tune", {PATH: TUNE}, base="ann/base"),
    }


class SmallHub:
    """revisions: repository -> row of its revision."""

    def __init__(self, reg: Registry, ann: Caller, revisions: dict[str, int]) -> None:
        self.reg = reg
        self.ann = ann
        self.revisions = revisions

    def read(self, name: str, path: str = PATH) -> bytes:
        return read_file(self.reg, self.revisions[name], path)

    def pack_of(self, name: str) -> str:
        """The pack with the tensors of this model."""
        tensors = [each.id for each in stored_tensors(self.reg, self.revisions[name]).values()]
        with self.reg.db.read() as session:
            packs = select(Frame.pack_id).where(Frame.tensor_id.in_(tensors)).distinct()
            return session.scalars(packs).one()

    def lose(self, name: str) -> bytes:
        """Delete the pack with the tensors of this model; returns its bytes."""
        key = pack_key(self.pack_of(name))
        data = contents(self.reg, key)
        self.reg.store.delete(key)
        return data

    def states(self) -> dict[str, str]:
        """SHA-256 -> state of each file."""
        with self.reg.db.read() as session:
            return {file.sha256: file.state for file in session.scalars(select(File))}

    def flip_a_block(self, name: str) -> None:
        """Damage the largest frame of this model, which lies in a pack with other frames."""
        tensors = [each.id for each in stored_tensors(self.reg, self.revisions[name]).values()]
        with self.reg.db.read() as session:
            frame = session.scalars(
                select(Frame).where(Frame.tensor_id.in_(tensors)).order_by(Frame.length.desc())
            ).first()
        assert frame is not None
        data = bytearray(contents(self.reg, pack_key(frame.pack_id)))
        data[frame.offset + parse_header(data[frame.offset :]).prefix_length + 9] ^= 4
        self.reg.store.put(pack_key(frame.pack_id), [bytes(data)])


def contents(reg: Registry, key: str) -> bytes:
    data = bytearray(reg.store.size(key))
    reg.store.get_into(key, 0, memoryview(data))
    return bytes(data)

"""A data folder as the release before fm_delta version 1 left it, with frames of version 0."""

import tarfile
from hashlib import sha256
from pathlib import Path

from sqlalchemy import select

from deltahub.codecs.frame import FrameHeader, parse_header
from deltahub.registry import Registry
from deltahub.registry.db.models import Frame
from deltahub.registry.store.keys import pack_key

ARCHIVE = Path(__file__).parents[1] / "vectors" / "store" / "fm_delta-v0.tar.xz"
PATH = "model.safetensors"
# A small network that was trained, trained further in BF16, saved as F32 then (against BF16), and
# trained further once more (a delta of a delta). name -> SHA-256 of its file; rows as they come.
FILES = {
    "ann/base": "14b3838ec54d5fdfff3c42d7d0af6d5d04384b2f8cc0bd68116e254cf945a42a",
    "ann/tune": "2569b6a11d847b0198b77eee8607986962b4ae0a3e78a666f4a754146709eb46",
    "ann/wide": "fac582a51afe77f61d793c0e39aae7b581b50c04eb56acc5af1bfa18dedb775c",
    "ann/further": "57fc5d81ab990b3e547a869bb7f8bb633bcc3d912540cc72a4118cf3babcf03a",
}
REVISIONS = {name: row for row, name in enumerate(FILES, 1)}


def unpack_trial_store(folder: Path) -> Path:
    """Lay the data folder out below `folder`; where it is."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "data"


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def stored_frames(reg: Registry) -> list[tuple[FrameHeader, bytes]]:
    """All frames that rows name, read from the store."""
    with reg.db.read() as session:
        rows = session.scalars(select(Frame).order_by(Frame.tensor_id, Frame.start)).all()
    frames = []
    for row in rows:
        frame = bytearray(row.length)
        reg.store.get_into(pack_key(row.pack_id), row.offset, memoryview(frame))
        frames.append((parse_header(frame), bytes(frame)))
    return frames


def trial_frames(reg: Registry) -> list[bytes]:
    """Those of version 0."""
    return [frame for header, frame in stored_frames(reg) if header.codec_version == 0]

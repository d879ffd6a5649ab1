"""Search for frames that this release's encoders may make smaller, and for unreadable frames.

The codec version, effort and dtype are not in the rows; they are read from the frame headers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Select, func, select, true, tuple_, update

from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames.header import FIXED, FRAME_VERSION, MAGIC
from deltahub.codecs.protocol import Effort
from deltahub.codecs.registry import BY_NUMBER, codec_for
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import FileTensor, Frame, Revision, Tensor, TensorBase
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.packs.encoder_generation import generation_of, is_up_to_date
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError
from deltahub.registry.storage.keys import pack_key

# Rows per query; the headers of their frames are read before the next query.
PAGE = 5000


@dataclass
class Count:
    """A number of frames, their bytes in packs, and their decoded bytes."""

    frames: int = 0
    stored_bytes: int = 0
    decoded_bytes: int = 0

    def add(self, frames: int, stored_bytes: int, decoded_bytes: int) -> None:
        self.frames += frames
        self.stored_bytes += stored_bytes
        self.decoded_bytes += decoded_bytes


@dataclass
class Survey:
    """The result of a survey.

    outdated: (codec, version, effort) -> frames to re-encode. tensors: row -> size, for tensors
    with such frames. to_mark: rows whose frame headers show that no frame can become smaller.
    unreadable: row -> reason, for tensors that cannot be decoded.
    """

    outdated: dict[tuple[str, int, int], Count] = field(default_factory=dict)
    up_to_date: Count = field(default_factory=Count)
    tensors: dict[int, int] = field(default_factory=dict)
    to_mark: set[int] = field(default_factory=set)
    unreadable: dict[int, str] = field(default_factory=dict)


def survey(reg: Registry, effort: Effort, repository_id: int | None = None) -> Survey:
    """Classify every frame that the encoders of this release have not tried at this effort.

    repository_id: only tensors of this repository's files. Cost: a scan of the frame rows, and a
    read of the store for each frame that its row does not show to be up to date.
    """
    found = Survey()
    scope = _in_repository(repository_id)
    tried = Frame.tried >= generation_of(effort)
    with reg.db.read() as session:
        sums = select(func.count(), total(Frame.length), total(Frame.size))
        n_frames, stored, decoded = session.execute(sums.where(tried, scope)).one()
    found.up_to_date.add(n_frames, stored or 0, decoded or 0)
    for page in _pages(reg, ~tried & scope):
        for row in sorted(page, key=lambda row: (row.pack_id, row.offset)):
            _classify(reg, found, row, effort)
    with reg.db.read() as session:
        _add_dependents(session, found.unreadable)
        for batch in batches(found.tensors):
            sizes = session.execute(select(Tensor.id, Tensor.size).where(Tensor.id.in_(batch)))
            found.tensors.update((tensor, size) for tensor, size in sizes)
    for tensor in found.unreadable:
        found.tensors.pop(tensor, None)
    found.to_mark -= found.tensors.keys() | found.unreadable.keys()
    return found


@dataclass(frozen=True)
class _FrameRow:
    """A frame's row."""

    tensor_id: int
    start: int
    size: int
    pack_id: str
    offset: int
    length: int


def _in_repository(repository_id: int | None) -> ColumnElement[bool]:
    if repository_id is None:
        return true()
    return Frame.tensor_id.in_(tensors_of(repository_id))


def tensors_of(repository_id: int) -> Select[int]:
    """A query for the tensors of the files of all revisions of the repository."""
    return (
        select(FileTensor.tensor_id)
        .join(Entry, Entry.file_id == FileTensor.file_id)
        .join(Revision, Revision.id == Entry.revision_id)
        .where(Revision.repository_id == repository_id)
    )


def _pages(reg: Registry, condition: ColumnElement[bool]) -> Iterator[list[_FrameRow]]:
    last = (-1, -1)
    columns = (Frame.tensor_id, Frame.start, Frame.size, Frame.pack_id, Frame.offset, Frame.length)
    while True:
        with reg.db.read() as session:
            rows = session.execute(
                select(*columns)
                .where(tuple_(Frame.tensor_id, Frame.start) > last, condition)
                .order_by(Frame.tensor_id, Frame.start)
                .limit(PAGE)
            ).all()
        if not rows:
            return
        yield [_FrameRow(*row) for row in rows]
        last = (rows[-1].tensor_id, rows[-1].start)


def _classify(reg: Registry, found: Survey, row: _FrameRow, effort: Effort) -> None:
    head = _read_header(reg, row)
    if head is None:
        head = _read_header(reg, moved) if (moved := _current_row(reg, row)) is not None else None
    if head is None:
        if _current_row(reg, row) is not None:  # else the tensor was deleted or re-encoded
            found.unreadable[row.tensor_id] = "its bytes are not in the store: run deltahub fsck"
        return
    fields = FIXED.unpack(head)
    magic, frame_version, number, version, code, used_effort = *fields[:5], fields[20]
    if magic != MAGIC:
        found.unreadable[row.tensor_id] = "its bytes are damaged: run deltahub fsck --read-data"
        return
    if not 1 <= frame_version <= FRAME_VERSION:
        found.unreadable[row.tensor_id] = f"frame version {frame_version}"
        return
    try:
        codec = codec_for(number, version)
    except CodecError:
        name = BY_NUMBER[number].codec_id if number in BY_NUMBER else f"codec {number}"
        found.unreadable[row.tensor_id] = f"{name} version {version}"
        return
    try:
        dtype = DType.from_code(code)
    except CodecError as exc:
        found.unreadable[row.tensor_id] = str(exc)
        return
    if is_up_to_date(codec.codec_id, version, dtype, used_effort, effort):
        found.to_mark.add(row.tensor_id)
        found.up_to_date.add(1, row.length, row.size)
        return
    found.tensors[row.tensor_id] = 0
    group = found.outdated.setdefault((codec.codec_id, version, used_effort), Count())
    group.add(1, row.length, row.size)


def _read_header(reg: Registry, row: _FrameRow) -> bytes | None:
    head = bytearray(FIXED.size)
    if row.length < len(head):
        return None
    try:
        reg.store.get_into(pack_key(row.pack_id), row.offset, memoryview(head))
    except StoreError:
        return None
    return bytes(head)


def _current_row(reg: Registry, row: _FrameRow) -> _FrameRow | None:
    """The present row of the frame; None if the tensor was deleted or re-encoded."""
    with reg.db.read() as session:
        now = session.get(Frame, (row.tensor_id, row.start))
    if now is None or (now.size, now.length) != (row.size, row.length):
        return None
    return _FrameRow(now.tensor_id, now.start, now.size, now.pack_id, now.offset, now.length)


def _add_dependents(session: ReadSession, unreadable: dict[int, str]) -> None:
    """Add the tensors whose decoding needs an unreadable tensor."""
    level: Mapping[int, str] = dict(unreadable)
    while level:
        next_level: dict[int, str] = {}
        for batch in batches(level):
            edges = select(TensorBase.tensor_id, TensorBase.base_id).where(
                TensorBase.base_id.in_(batch)
            )
            for tensor, base in session.execute(edges):
                if tensor not in unreadable:
                    next_level[tensor] = f"a difference from {_base_reason(level[base])}"
        unreadable.update(next_level)
        level = next_level


def _base_reason(reason: str) -> str:
    return reason if reason.startswith("a difference") else f"a tensor in {reason}"


def outdated_among(session: ReadSession, tensors: Iterable[int], generation: int) -> list[int]:
    """The subset of these rows with frames last tried by an older generation than this."""
    found: list[int] = []
    for batch in batches(tensors):
        query = select(Frame.tensor_id).where(Frame.tensor_id.in_(batch), Frame.tried < generation)
        found.extend(session.scalars(query.distinct()))
    return found


def mark_tried(session: WriteSession, tensors: Iterable[int], generation: int) -> None:
    """Store that encoders of this generation cannot make the frames of these tensors smaller."""
    for batch in batches(tensors):
        session.execute(
            update(Frame)
            .where(Frame.tensor_id.in_(batch), Frame.tried < generation)
            .values(tried=generation)
            .execution_options(synchronize_session=False)
        )

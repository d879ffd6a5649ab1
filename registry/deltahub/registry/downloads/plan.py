"""What the DeltaHub client needs to rebuild a file: its recipe's tensors and their frames.

The frame of a delta and the bytes of its tensor together reveal the base. So a frame is sent only
to a caller who may read its bases. Other callers get the bytes of the file, which the hub decodes.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import select

from deltahub.codecs.registry import BY_NUMBER
from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.visibility import unreadable_tensors
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import File, FileTensor, Repository, Revision, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.recipe_index import HASH
from deltahub.registry.errors import DataLost, LimitExceeded, TensorNotFound
from deltahub.registry.packs.frame_reader import DamagedFrame
from deltahub.registry.packs.locations import FrameLocation, bases_of, locate
from deltahub.registry.packs.reading.read_ahead import Span
from deltahub.registry.packs.tensor_reader import MIB
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound


class TensorRow(NamedTuple):
    """The columns TENSOR_COLUMNS of a tensor. Whole rows take several times the memory."""

    id: int
    hash: bytes
    size: int
    depth: int


TENSOR_COLUMNS = (Tensor.id, Tensor.hash, Tensor.size, Tensor.depth)


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of a file. encoded_size: bytes of all its frames.

    codec: the one of most of its bytes. bases: content ids of its direct bases.
    """

    id: bytes
    size: int
    encoded_size: int
    codec: str
    depth: int
    bases: tuple[bytes, ...]


@dataclass(frozen=True)
class FileDownload:
    """What is needed to rebuild a file. Each tensor is listed once, in order of first use."""

    recipe: bytes
    size: int
    sha256: str
    tensors: tuple[PlannedTensor, ...]


def plan_download(
    reg: Registry, reader: FileReader, caller: Caller | None, file: File
) -> FileDownload:
    """How the tensors of an ingested file are stored now, for a caller who may read the file.

    A delta of a tensor that the caller may not read is shown as stored raw: without the bases, and
    as large as the tensor, so that clients ask for its bytes and not for its frames.
    NotReady if the file is not ingested, EntryNotFound if it is gone, DataLost.
    """
    recipe = reader.load_recipe(file)
    with reg.db.read() as session:
        # The rows of this file, which stream_frames sends. Two domains may store the same bytes.
        tensors_of_file = session.execute(
            select(*TENSOR_COLUMNS)
            .join(FileTensor, FileTensor.tensor_id == Tensor.id)
            .where(FileTensor.file_id == file.id)
        )
        rows = {tensor.hash: tensor for tensor in map(TensorRow._make, tensors_of_file)}
        stored = describe(session, rows.values())
        for row_id in deltas_of_unreadable(session, caller, stored):
            stored[row_id] = replace(
                stored[row_id], encoded_size=stored[row_id].size, codec="raw", bases=()
            )
    missing = [ref.tensor for ref in recipe.tensors() if ref.tensor not in rows]
    if missing:
        reader.check_is_there(file)
        raise DataLost(f"tensor {missing[0].hex()} is gone; run deltahub fsck")
    ordered = dict.fromkeys(ref.tensor for ref in recipe.tensors())
    planned = tuple(stored[rows[content].id] for content in ordered)
    return FileDownload(recipe.id, file.size, file.sha256, planned)


def describe(session: ReadSession, tensors: Iterable[TensorRow]) -> dict[int, PlannedTensor]:
    """Row id of a tensor -> how the tensor is stored."""
    found: dict[int, PlannedTensor] = {}
    # In batches, because places take far more memory than what is said of them.
    for batch in batches(tensors, PART_TENSORS):
        cancellation.check()
        found |= _described(session, batch)
    return found


def _described(session: ReadSession, tensors: Iterable[TensorRow]) -> dict[int, PlannedTensor]:
    rows = {tensor.id: tensor for tensor in tensors}
    located = locate(session, rows)
    bases = bases_of(session, rows)
    hashes: dict[int, bytes] = {}
    for batch in batches({base for found in bases.values() for base in found}):
        found = session.execute(select(Tensor.id, Tensor.hash).where(Tensor.id.in_(batch)))
        hashes.update((row_id, content) for row_id, content in found)
    return {
        row_id: PlannedTensor(
            id=tensor.hash,
            size=tensor.size,
            encoded_size=sum(frame.length for frame in located[row_id].frames),
            codec=codec_of(located[row_id].frames),
            depth=tensor.depth,
            bases=tuple(sorted(hashes[base] for base in bases.get(row_id, ()))),
        )
        for row_id, tensor in rows.items()
        if row_id in located
    }


def deltas_of_unreadable(
    session: ReadSession, caller: Caller | None, row_ids: Iterable[int]
) -> set[int]:
    """The subset of these rows whose frames the caller may not get."""
    bases = bases_of(session, row_ids)
    wanted = {base for found in bases.values() for base in found}
    unreadable = unreadable_tensors(session, caller, wanted)
    return {row_id for row_id, found in bases.items() if not unreadable.isdisjoint(found)}


def codec_of(frames: Iterable[FrameLocation]) -> str:
    """The codec that encodes most of a tensor's bytes."""
    sizes: dict[int, int] = {}
    for frame in frames:
        sizes[frame.codec] = sizes.get(frame.codec, 0) + frame.size
    if not sizes:
        raise DataLost("a tensor has no frames; run deltahub fsck")
    number = max(sizes, key=lambda codec: sizes[codec])
    codec = BY_NUMBER.get(number)
    return codec.codec_id if codec is not None else f"codec {number}"


class EncodedAgain(DataLost):
    """The frames that a stream began with are gone, and others have the same bytes."""


@dataclass(frozen=True)
class FrameStream:
    """Frames back to back, n_bytes in all."""

    n_bytes: int
    chunks: Iterator[bytes]


def stream_frames(
    reg: Registry,
    reader: FileReader,
    caller: Caller | None,
    revision: Revision,
    tensors: Sequence[bytes],
) -> FrameStream:
    """All frames of these tensors, in this order, each tensor's in order of start.

    TensorNotFound unless every tensor is part of a file of the revision, and for a delta of a
    tensor that the caller may not read.
    """
    limit = reg.settings.max_query_tensors
    if len(tensors) > limit:
        raise LimitExceeded(f"a request names at most {limit} tensors, not {len(tensors)}")
    with reg.db.read() as session:
        ids = tensors_of(session, revision, tensors)
        located = locate(session, ids.values())
        secret = deltas_of_unreadable(session, caller, ids.values())
    for content in tensors:
        if content not in ids or ids[content] not in located:
            raise TensorNotFound(f"no file of {revision.commit} has a tensor {content.hex()}")
        if ids[content] in secret:
            raise TensorNotFound(
                f"tensor {content.hex()} has no frames for you: it is stored as a difference from"
                " a tensor that you may not read; read its bytes from the file"
            )
    frames = _Frames()
    for content in tensors:
        for frame in located[ids[content]].frames:
            frames.add(ids[content], frame)
    return FrameStream(frames.n_bytes, _chunks(reg, reader, frames))


def tensors_of(
    session: ReadSession, revision: Revision, tensors: Sequence[bytes]
) -> dict[bytes, int]:
    """Content id -> row id. If two domains have it, the repository's domain is preferred."""
    own = session.get_one(Repository, revision.repository_id).domain_id
    found: dict[bytes, int] = {}
    for batch in batches(dict.fromkeys(tensors)):
        rows = session.execute(
            select(Tensor.hash, Tensor.id, Tensor.domain_id)
            .join(FileTensor, FileTensor.tensor_id == Tensor.id)
            .join(Entry, Entry.file_id == FileTensor.file_id)
            .where(Entry.revision_id == revision.id, Tensor.hash.in_(batch))
        )
        for content, row_id, domain_id in rows:
            if content not in found or domain_id == own:
                found[content] = row_id
    return found


def paths_with(session: ReadSession, revision: Revision, tensor: bytes) -> list[str]:
    """The paths of the revision's files that need this tensor, in order."""
    rows = session.scalars(
        select(Entry.path)
        .join(FileTensor, FileTensor.file_id == Entry.file_id)
        .join(Tensor, Tensor.id == FileTensor.tensor_id)
        .where(Entry.revision_id == revision.id, Tensor.hash == tensor)
        .distinct()
        .order_by(Entry.path)
    )
    return list(rows)


class _Frames:
    """The frames of a stream in order, in some 90 bytes each: many streams wait for slow clients.

    Iterating gives (row id of the tensor, frame).
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self._packs: dict[str, int] = {}
        self._numbers = array("Q")
        self._tensors = bytearray()

    def add(self, row_id: int, frame: FrameLocation) -> None:
        pack = self._packs.setdefault(frame.pack_id, len(self._packs))
        place = (frame.start, frame.size, frame.offset, frame.length, frame.codec)
        self._numbers.extend((row_id, pack, *place))
        self._tensors += frame.tensor
        self.n_bytes += frame.length

    def __iter__(self) -> Iterator[tuple[int, FrameLocation]]:
        packs = list(self._packs)
        for number, tensor in enumerate(_slices(self._tensors, HASH)):
            row_id, pack, start, size, offset, length, codec = self._numbers[
                7 * number : 7 * number + 7
            ]
            yield row_id, FrameLocation(start, size, packs[pack], offset, length, codec, tensor)


def _slices(data: bytearray, size: int) -> Iterator[bytes]:
    return (bytes(data[at : at + size]) for at in range(0, len(data), size))


def _chunks(reg: Registry, reader: FileReader, frames: _Frames) -> Iterator[bytes]:
    pending = bytearray()
    ahead, position = reader.read_ahead(_spans(frames)), 0
    for row_id, frame in frames:
        for start in range(0, frame.length, MIB):
            n = min(MIB, frame.length - start)
            try:
                pending += _read(reg, reader, row_id, frame, start, n)
            except DataLost as exc:
                exc.tensor = frame.tensor
                raise
            position += n
            ahead.advance(position)
            if len(pending) >= MIB:
                yield bytes(pending)
                pending.clear()
    if pending:
        yield bytes(pending)


def _spans(frames: _Frames) -> Iterator[Span]:
    position = 0
    for _, frame in frames:
        for start in range(0, frame.length, MIB):
            end = min(frame.length, start + MIB)
            yield Span(position, frame.pack_id, frame.offset + start, frame.offset + end)
            position += end - start


def _read(
    reg: Registry,
    reader: FileReader,
    row_id: int,
    frame: FrameLocation,
    start: int,
    n: int,
) -> memoryview:
    """Bytes [start, start + n) of a frame, from its current location if its pack is gone or short.

    A stream that has begun can only continue with the same frames. If the frame was copied to
    another pack, the copy is read; if the tensor was encoded again, EncodedAgain tells the client
    to repeat the request. Other DataLost names the tensor.
    """
    try:
        return reader.frames.read(frame, start, n)
    except (ObjectNotFound, DataLost):
        with reg.db.read() as session:
            now = locate(session, [row_id]).get(row_id)
    moved = None if now is None or now.hash != frame.tensor else now.frame_at(frame.start)
    if moved is None or (moved.start, moved.size, moved.length, moved.codec) != (
        frame.start,
        frame.size,
        frame.length,
        frame.codec,
    ):
        raise EncodedAgain(
            f"tensor {frame.tensor.hex()} was encoded again while it was sent; ask again"
        )
    try:
        return reader.frames.read(moved, start, n)
    except (ObjectNotFound, DamagedFrame) as exc:
        if reader.frames.turn_to_copy(moved, exc, reader.marks_damage):
            return _read(reg, reader, row_id, moved, start, n)
        if isinstance(exc, DamagedFrame):
            raise
        raise DataLost(f"{exc}, and no row says where it went; run deltahub fsck") from exc

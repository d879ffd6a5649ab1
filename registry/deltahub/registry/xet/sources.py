"""Finds and reads the chunks that a shard refers to, in xorbs of the repository or in files."""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqlalchemy import select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.visibility import readable_files, sharing_domains
from deltahub.registry.db.models import File, Repository, XetRange, Xorb
from deltahub.registry.db.session import ReadSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, EntryNotFound, InvalidRequest, UploadNotFound
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import Buffer, ObjectNotFound, ShortObject
from deltahub.registry.storage.keys import xorb_key
from deltahub.registry.xet.hashes import to_text
from deltahub.registry.xet.receive_xorb import condemn, find_xorb, is_intact
from deltahub.registry.xet.shard import Term
from deltahub.registry.xet.xorb import XorbIndex

log = logging.getLogger(__name__)

MIB: Final = 1 << 20
# Xorbs whose indexes are cached: at most 0.3 MB each.
_CACHED_XORBS: Final = 16
# Rows of the chunk map that are looked at for one xorb, newest first.
_MAX_RANGES: Final = 2000


class UnknownXorb(UploadNotFound):
    """A shard refers to chunks that the hub does not have, or that the caller may not read."""


@dataclass(frozen=True)
class InXorb:
    """Chunks in a xorb of the repository, from byte `start` of its object on."""

    xorb_id: str
    start: int
    chunks: XorbIndex


@dataclass(frozen=True)
class InFile:
    """Chunks in a file, from byte `start` on."""

    file: File
    start: int
    chunks: XorbIndex


Segment: TypeAlias = InXorb | InFile


@dataclass(frozen=True)
class _Range:
    """Chunks [first, end) of a xorb in a file that the caller may read."""

    id: int
    first: int
    end: int
    offset: int
    file: File


@dataclass(frozen=True)
class _KnownXorb:
    """The content of a xorb on this hub: a stored xorb with its index, or ranges of files."""

    xorb_id: str | None
    index: XorbIndex
    ranges: list[_Range]


class Sources:
    """Finds chunks for one caller and one repository, and reads them. For one thread.

    Memory: the indexes of 16 xorbs, and 1 MiB of chunks.
    """

    def __init__(
        self, reg: Registry, reader: FileReader, caller: Caller, repository: Repository
    ) -> None:
        self._reg = reg
        self._reader = reader
        self._caller = caller
        self._repository = repository
        self._cache: OrderedDict[bytes, _KnownXorb] = OrderedDict()
        self._buffer = memoryview(bytearray(MIB))

    def find(self, term: Term) -> list[Segment]:
        """The chunks of a term in order; UnknownXorb, InvalidRequest if the xorb has fewer."""
        known = self._known(term.xorb)
        if known.xorb_id is None:
            return list(self._in_files(term, known.ranges))
        if term.end > known.index.n_chunks:
            raise InvalidRequest(
                f"chunks {term.first} to {term.end} are named of xorb {to_text(term.xorb)}, which"
                f" has {known.index.n_chunks}"
            )
        start = known.index.part(0, term.first).size
        return [InXorb(known.xorb_id, start, known.index.part(term.first, term.end))]

    def read(self, segment: Segment) -> Iterator[Buffer]:
        """The bytes of a segment, about 1 MiB at a time; each piece is valid until the next."""
        if isinstance(segment, InFile):
            end = segment.start + segment.chunks.size
            try:
                yield from self._reader.stream_file(segment.file, segment.start, end)
            except EntryNotFound as exc:
                raise UnknownXorb("a file with chunks of this upload was just deleted") from exc
            return
        try:
            yield from self._chunks_of(segment)
        except ObjectNotFound as exc:
            # The xorb has just expired, or was lost. In both cases the client may send it again.
            with self._reg.db.write() as session:
                condemn(session, segment.xorb_id)
            raise UnknownXorb(
                "a xorb of this upload has just expired: start the upload again"
            ) from exc

    def drop_damaged(self, terms: Iterable[Term]) -> bool:
        """Condemn the damaged xorbs of these terms; returns whether there were any."""
        is_damaged = False
        for xorb in {term.xorb for term in terms}:
            known = self._known(xorb)
            if known.xorb_id is None or is_intact(self._reg, known.xorb_id, known.index, xorb):
                continue
            is_damaged = True
            log.error("xorb=%s damaged on the disk: dropped", known.xorb_id)
            with self._reg.db.write() as session:
                condemn(session, known.xorb_id)
            del self._cache[xorb]
        return is_damaged

    def _chunks_of(self, segment: InXorb) -> Iterator[Buffer]:
        end = segment.start + segment.chunks.size
        for offset in range(segment.start, end, MIB):
            out = self._buffer[: end - offset]
            try:
                self._reg.store.get_into(xorb_key(segment.xorb_id), offset, out)
            except ShortObject as exc:
                raise DataLost(f"xorb {segment.xorb_id} is cut short; run deltahub fsck") from exc
            yield out

    def _in_files(self, term: Term, ranges: list[_Range]) -> Iterator[Segment]:
        """The term as the fewest segments of files."""
        position = term.first
        while position < term.end:
            covering = [each for each in ranges if each.first <= position < each.end]
            if not covering:
                raise unknown_xorb(term.xorb)
            best = max(covering, key=lambda each: each.end)
            with self._reg.db.read() as session:
                row = session.get(XetRange, best.id)
            if row is None or row.xorb != term.xorb or row.first != best.first:
                raise unknown_xorb(term.xorb)
            chunks = XorbIndex(row.chunks)
            skipped = chunks.part(0, position - best.first).size
            end = min(best.end, term.end)
            part = chunks.part(position - best.first, end - best.first)
            yield InFile(best.file, best.offset + skipped, part)
            position = end

    def _known(self, xorb: bytes) -> _KnownXorb:
        known = self._cache.get(xorb)
        if known is None:
            with self._reg.db.read() as session:
                known = self._look_up(session, xorb)
            self._cache[xorb] = known
            if len(self._cache) > _CACHED_XORBS:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(xorb)
        return known

    def _look_up(self, session: ReadSession, xorb: bytes) -> _KnownXorb:
        xorb_id = find_xorb(session, self._repository.id, xorb)
        row = None if xorb_id is None else session.get(Xorb, xorb_id)
        if row is not None:
            return _KnownXorb(row.id, XorbIndex(row.chunks), [])
        columns = (XetRange.id, XetRange.first, XetRange.end, XetRange.offset, XetRange.sha256)
        rows = session.execute(
            select(*columns)
            .where(
                XetRange.xorb == xorb,
                XetRange.domain_id.in_(sharing_domains(session, self._repository)),
            )
            .order_by(XetRange.id.desc())
            .limit(_MAX_RANGES)
        ).all()
        # The message must not differ for files that the caller may not read and for absent files.
        hashes = {row.sha256 for row in rows}
        files = readable_files(session, self._caller, self._repository, hashes)
        ranges = [
            _Range(row.id, row.first, row.end, row.offset, files[row.sha256])
            for row in rows
            if row.sha256 in files
        ]
        return _KnownXorb(None, XorbIndex(b""), ranges)


def unknown_xorb(xorb: bytes) -> UnknownXorb:
    """The same message for chunks never sent, expired, of another repository, or private."""
    return UnknownXorb(
        f"this hub does not have all chunks of xorb {to_text(xorb)} for you (any more), but your"
        " client remembers having sent them; start the upload again: the hub has just made it"
        " forget them (epoch), so that it sends everything"
    )

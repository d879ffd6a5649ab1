"""Receives a shard: assembles, verifies and lands each of its files like any other upload."""

import hashlib
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import exists, insert, select

from deltahub.registry import cancellation, failpoints
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.access.visibility import sharing_domains
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Repository, XetRange
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import (
    Cancelled,
    Conflict,
    DataLost,
    HashMismatch,
    InvalidRequest,
    LimitExceeded,
    SizeMismatch,
    UploadNotFound,
)
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import Buffer
from deltahub.registry.uploads import landing
from deltahub.registry.uploads.discard import drop_upload
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.registry.xet.epochs import advance_epoch, repository_at
from deltahub.registry.xet.hashes import HASH_BYTES, Merkle, range_hash, to_text
from deltahub.registry.xet.receive_xorb import extend_expiry
from deltahub.registry.xet.shard import Shard, ShardFile
from deltahub.registry.xet.sources import Segment, Sources, UnknownXorb
from deltahub.registry.xet.xorb import MAX_XORB_BYTES

# Rows of the chunk map that one transaction writes: up to 330 KB each, mostly 40 KB.
_ROWS = 50
# The chunk map has at most one chunk for each 4096 bytes of a file. Clients make chunks of 8192
# bytes or more, so only overlapping terms or tiny chunks reach this limit.
_BYTES_A_CHUNK = 4096
# Terms that a shard may have whatever its size is: small files have one each.
_FREE_TERMS = 50_000
_CHUNKS_A_ROW = 8  # the fixed size of a row, counted in chunks


@dataclass
class Progress:
    """Progress of a shard in bytes of its files; another thread reads it."""

    done: int = 0
    total: int = 0
    is_cancelled: bool = False

    def add(self, n_bytes: int) -> None:
        """Count bytes as done; Cancelled if the client has disconnected."""
        self.done += n_bytes
        self.check()

    def check(self) -> None:
        """Cancelled if the client has disconnected."""
        cancellation.check()
        if self.is_cancelled:
            raise Cancelled("the client disconnected, so the hub stopped this work")


def accept_shard(
    reg: Registry,
    reader: FileReader,
    caller: Caller,
    place: str,
    path: Path,
    progress: Progress,
) -> None:
    """Land every file of the shard at `path`, as uploads of the caller.

    Afterwards the caller can commit each file by its SHA-256. Safe to run again, or to be killed at
    any point: landed files stay. UnknownXorb if chunks are absent or not readable; this
    advances the epoch of the repository. RepositoryNotFound, Forbidden, InvalidRequest,
    HashMismatch, LimitExceeded, and the errors of landing.receive.
    """
    with reg.db.read() as session:
        repository = repository_at(session, caller, place, "write")
        name = full_name(session, repository)
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            raise InvalidRequest("the shard is empty")
        # The map closes itself when its last view is gone.
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    files = Shard(data, reg.settings.max_operations).files
    progress.total = sum(each.size for each in files)
    _check_cost(reg, files)
    sources = Sources(reg, reader, caller, repository)
    try:
        for each in files:
            progress.check()
            _File(reg, sources, caller, repository, name, each).accept(progress)
    except UnknownXorb:
        with reg.db.write() as session:
            if session.get(Repository, repository.id) is not None:
                advance_epoch(session, repository.id)
        raise


def _check_cost(reg: Registry, files: Sequence[ShardFile]) -> None:
    """LimitExceeded if the files would take more work than clients' shards ever cause."""
    n_bytes = sum(each.size for each in files)
    if n_bytes > reg.settings.max_shard_bytes:
        limit = reg.settings.max_shard_bytes
        raise LimitExceeded(
            f"the files of a shard may have {limit} bytes, and these have {n_bytes}: upload the"
            " folder in parts"
        )
    n_terms = sum(each.n_terms for each in files)
    max_terms = _FREE_TERMS + n_bytes // _BYTES_A_CHUNK
    if n_terms > max_terms:
        raise LimitExceeded(
            f"files of {n_bytes} bytes may consist of {max_terms} ranges of chunks, and the shard"
            f" lists {n_terms}"
        )


@dataclass(frozen=True)
class _File:
    """Receives one file of a shard."""

    reg: Registry
    sources: Sources
    caller: Caller
    repository: Repository
    name: str
    file: ShardFile

    def accept(self, progress: Progress) -> None:
        done = progress.done
        try:
            self._accept(progress)
        except (HashMismatch, DataLost):
            if not self.sources.drop_damaged(self.file.terms()):
                raise
            # The second try finds the chunks in a file, or raises UnknownXorb.
            progress.done = done
            self._accept(progress)

    def _accept(self, progress: Progress) -> None:
        sha256, size = self.file.sha256, self.file.size
        done = progress.done
        is_known = query_and_keep(self.reg, self.caller, self.name, [(sha256, size)]) != []
        if not is_known or not self._is_mapped(sha256):
            self._check(progress)
            chunks = self._chunks(progress.add)
            if is_known:
                _verify_sha256(sha256, chunks)
                self._write_chunk_map(sha256, progress)
            elif self._land(sha256, size, chunks):
                self._write_chunk_map(sha256, progress)
        progress.done = done + size

    def _land(self, sha256: str, size: int, chunks: "_CountedBytes") -> bool:
        """Land the chunks; False if another request has landed the file first."""
        try:
            landing.receive(self.reg, self.caller, sha256, size, 0, chunks)
        except Cancelled:
            # No client continues such an upload: the next shard begins the file again.
            with suppress(UploadNotFound, Conflict):
                drop_upload(self.reg, self.caller, sha256)
            raise
        return chunks.n_bytes == size

    def _check(self, progress: Progress) -> None:
        """Check the shard's hashes of its terms and of the file. Reads chunk hashes, no chunks."""
        self._extend_xorbs()
        tree = Merkle()
        for term in self.file.terms():
            progress.check()
            hashes = []
            size = 0
            for segment in self.sources.find(term):
                tree.update(segment.chunks.entries())
                hashes.append(segment.chunks.hashes())
                size += segment.chunks.size
            if size != term.size:
                raise SizeMismatch(
                    f"the shard says {term.size} bytes for chunks {term.first} to {term.end} of"
                    f" xorb {to_text(term.xorb)}, which have {size}"
                )
            if term.verification is None or term.verification != range_hash(b"".join(hashes)):
                raise HashMismatch(
                    f"the shard's verification hash of chunks {term.first} to {term.end} of xorb"
                    f" {to_text(term.xorb)} is missing or wrong"
                )
        if tree.file_hash() != self.file.hash:
            raise HashMismatch(f"the chunks named are not those of file {to_text(self.file.hash)}")

    def _extend_xorbs(self) -> None:
        """Extend the expiry of the file's xorbs. LimitExceeded if chunks repeat too often."""
        xorbs = {term.xorb for term in self.file.terms()}
        limit = len(xorbs) * MAX_XORB_BYTES + self.reg.settings.max_decoded_bytes
        if self.file.size > limit:
            raise LimitExceeded(
                f"a file of {len(xorbs)} xorbs may have at most {limit} bytes, not"
                f" {self.file.size}: its chunks repeat too often"
            )
        with self.reg.db.write_beside() as session:
            extend_expiry(self.reg, session, self.repository.id, xorbs)

    def _chunks(self, report: Callable[[int], None]) -> "_CountedBytes":
        segments = (each for term in self.file.terms() for each in self.sources.find(term))
        return _CountedBytes(self.sources, segments, report)

    def _is_mapped(self, sha256: str) -> bool:
        with self.reg.db.read() as session:
            domains = sharing_domains(session, self.repository)
            is_usable = XetRange.domain_id.in_(domains)
            query = select(exists().where(XetRange.sha256 == sha256, is_usable))
            return bool(session.scalar(query))

    def _write_chunk_map(self, sha256: str, progress: Progress) -> None:
        """Write the chunk map of the file, which has just been verified."""
        failpoints.reached("xet.shard.before_ranges")
        with self.reg.db.read() as session:
            repository = session.get(Repository, self.repository.id)
            if repository is None:
                return  # deleted meanwhile
            columns = (XetRange.xorb, XetRange.first, XetRange.end)
            domain_id = repository.domain_id
            rows_here = select(*columns).where(
                XetRange.sha256 == sha256, XetRange.domain_id == domain_id
            )
            known = {(xorb, first, end) for xorb, first, end in session.execute(rows_here)}
        for rows in batches(self._rows(sha256, domain_id, known), _ROWS):
            progress.check()
            with self.reg.db.write_beside() as session:
                session.execute(insert(XetRange), list(rows))

    def _rows(
        self, sha256: str, domain_id: int, known: set[tuple[bytes, int, int]]
    ) -> Iterator[dict[str, object]]:
        offset = 0
        taken = sum(end - first + _CHUNKS_A_ROW for _, first, end in known)
        left = self.file.size // _BYTES_A_CHUNK + 1 + _CHUNKS_A_ROW - taken
        for term in self.file.terms():
            key = (term.xorb, term.first, term.end)
            if key not in known:
                left -= term.end - term.first + _CHUNKS_A_ROW
                if left < 0:
                    return
                known.add(key)
                chunks = b"".join(each.chunks.data for each in self.sources.find(term))
                yield {
                    "xorb": term.xorb, "first": term.first, "end": term.end,
                    "sha256": sha256, "offset": offset, "chunks": chunks,
                    "head": None if offset else chunks[:HASH_BYTES], "domain_id": domain_id,
                }  # fmt: skip
            offset += term.size


class _CountedBytes:
    """Iterates over the bytes of segments once. n_bytes: bytes yielded so far."""

    def __init__(
        self, sources: Sources, segments: Iterator[Segment], report: Callable[[int], None]
    ) -> None:
        self._sources = sources
        self._segments = segments
        self._report = report
        self.n_bytes = 0

    def __iter__(self) -> Iterator[Buffer]:
        for segment in self._segments:
            for data in self._sources.read(segment):
                n_bytes = memoryview(data).nbytes
                self._report(n_bytes)
                self.n_bytes += n_bytes
                yield data


def _verify_sha256(sha256: str, chunks: Iterable[Buffer]) -> None:
    """HashMismatch unless the chunks have this SHA-256."""
    found = hashlib.sha256()
    for data in chunks:
        found.update(data)
    if found.hexdigest() != sha256:
        raise HashMismatch(f"the chunks named have SHA-256 {found.hexdigest()}, not {sha256}")

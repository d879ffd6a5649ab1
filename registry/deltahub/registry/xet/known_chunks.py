"""Global deduplication: chunks that a client need not send, of files with the same first chunk."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import func, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.visibility import readable_files, sharing_domains
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Repository, XetRange, Xorb
from deltahub.registry.db.session import Database, ReadSession
from deltahub.registry.errors import Unavailable
from deltahub.registry.registry import Registry
from deltahub.registry.uploads.known_files import mark_missing
from deltahub.registry.xet.epochs import repository_at
from deltahub.registry.xet.shard import response_bytes, response_shard
from deltahub.registry.xet.xorb import ENTRY_BYTES, XorbIndex

# How long a client may rely on a response. If gc deletes chunks sooner, one upload fails and the
# client starts it again. A new query costs nothing.
TTL: Final = timedelta(hours=1)
# Files with the same first chunk that are looked at, newest first.
_MAX_FILES: Final = 1000
# A response of 12 MB, for chunks of 16 GiB.
_MAX_CHUNKS: Final = 1 << 18
# Rows of the chunk map that are looked at for one file.
_MAX_RANGES: Final = 4096


class _Range(NamedTuple):
    """Chunks [first, end) of a xorb, listed in the row `id` of the chunk map."""

    first: int
    end: int
    id: int


@dataclass(frozen=True)
class _KnownXorb:
    """Chunks [0, n_chunks) of a xorb: a stored xorb (xorb_id), or ranges of the chunk map."""

    hash: bytes
    n_chunks: int
    xorb_id: str | None
    ranges: list[_Range]


class KnownChunks:
    """A shard that lists xorbs for a client. It has `size` bytes and is read xorb by xorb."""

    def __init__(self, db: Database, xorbs: Collection[_KnownXorb]) -> None:
        self._db = db
        self._xorbs = xorbs
        self.size = response_bytes([xorb.n_chunks for xorb in xorbs])

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the shard: one piece of at most 0.4 MB for each xorb.

        Unavailable if gc has deleted chunks meanwhile; a new query lists the remaining ones.
        """
        read = ((xorb.hash, self._read(xorb)) for xorb in self._xorbs)
        return response_shard(read, TTL)

    def _read(self, xorb: _KnownXorb) -> XorbIndex:
        with self._db.read() as session:
            if xorb.xorb_id is not None:
                own = session.scalar(select(Xorb.chunks).where(Xorb.id == xorb.xorb_id))
                index = XorbIndex(own or b"")
            else:
                index = XorbIndex(b"".join(_chunks_of_ranges(session, xorb)))
        if index.n_chunks != xorb.n_chunks:
            raise Unavailable("chunks were dropped while the hub listed them; ask again")
        return index


def known_chunks(reg: Registry, caller: Caller, place: str, digest: bytes) -> KnownChunks | None:
    """A shard of the xorbs of the newest file whose first chunk has this hash; None without one.

    place: the repository's URL part (epochs.place_of). The caller may read the file and the
    repository may refer to it, because a client may send a shard that uses these chunks.
    RepositoryNotFound, Forbidden.
    """
    with reg.db.read() as session:
        repository = repository_at(session, caller, place, "write")
        newest = _newest(session, caller, repository, digest)
    if newest is None:
        return None
    mark_missing(reg, [newest])
    with reg.db.read() as session:
        newest = _newest(session, caller, repository, digest)
        if newest is None:
            return None
        domains = sharing_domains(session, repository)
        xorbs = list(_limited(_xorbs_of(session, repository, newest.sha256, domains)))
    return KnownChunks(reg.db, xorbs) if xorbs else None


def _newest(
    session: ReadSession, caller: Caller, repository: Repository, digest: bytes
) -> File | None:
    """The newest file with this first chunk that the caller may use."""
    rows = session.scalars(
        select(XetRange.sha256)
        .where(
            XetRange.head == digest,
            XetRange.domain_id.in_(sharing_domains(session, repository)),
        )
        .order_by(XetRange.id.desc())
        .limit(_MAX_FILES)
    ).all()
    readable = readable_files(session, caller, repository, rows)
    return next((readable[sha256] for sha256 in rows if sha256 in readable), None)


def _xorbs_of(
    session: ReadSession, repository: Repository, sha256: str, domains: list[int]
) -> Iterator[_KnownXorb]:
    """The file's xorbs in the order of the file, each up to the first chunk that the hub lacks."""
    ranges: dict[bytes, list[_Range]] = {}
    rows = session.execute(
        select(XetRange.xorb, XetRange.first, XetRange.end, XetRange.id)
        .where(XetRange.sha256 == sha256, XetRange.domain_id.in_(domains))
        .order_by(XetRange.offset)
        .limit(_MAX_RANGES)
    )
    for xorb, *part in rows:
        ranges.setdefault(xorb, []).append(_Range(*part))
    own = _own_xorbs(session, repository, ranges)
    for xorb, parts in ranges.items():
        if xorb in own:
            yield own[xorb]
            continue
        chosen = _shortest_cover(parts)
        if chosen:
            yield _KnownXorb(xorb, chosen[-1].end, None, chosen)


def _own_xorbs(
    session: ReadSession, repository: Repository, hashes: Collection[bytes]
) -> dict[bytes, _KnownXorb]:
    """Hash -> xorb, for the xorbs that the repository still has."""
    found: dict[bytes, _KnownXorb] = {}
    for batch in batches(hashes):
        rows = session.execute(
            select(Xorb.hash, func.length(Xorb.chunks), Xorb.id).where(
                Xorb.repository_id == repository.id, Xorb.hash.in_(batch), Xorb.state == "live"
            )
        )
        for xorb, n_bytes, xorb_id in rows:
            found[xorb] = _KnownXorb(xorb, n_bytes // ENTRY_BYTES, xorb_id, [])
    return found


def _shortest_cover(parts: Iterable[_Range]) -> list[_Range]:
    """The fewest ranges that cover a xorb's chunks from the first on, without a gap.

    A file may have any number of overlapping ranges; only an attacker sends such terms.
    """
    chosen: list[_Range] = []
    reached, furthest = 0, None
    for part in sorted(parts):
        if part.first > reached:
            if furthest is None or furthest.end < part.first:
                break
            chosen.append(furthest)
            reached, furthest = furthest.end, None
        if part.end > (reached if furthest is None else furthest.end):
            furthest = part
    return chosen if furthest is None else [*chosen, furthest]


def _chunks_of_ranges(session: ReadSession, xorb: _KnownXorb) -> Iterator[bytes]:
    """The chunks that each range adds to the ranges before it."""
    reached = 0
    for part in xorb.ranges:
        # The database reuses ids of deleted rows. A row with this xorb and first chunk is as good.
        chunks = session.scalar(
            select(XetRange.chunks).where(
                XetRange.id == part.id, XetRange.xorb == xorb.hash, XetRange.first == part.first
            )
        )
        yield XorbIndex(chunks or b"").part(reached - part.first, part.end - part.first).data
        reached = part.end


def _limited(xorbs: Iterable[_KnownXorb]) -> Iterator[_KnownXorb]:
    n_chunks = 0
    for xorb in xorbs:
        n_chunks += xorb.n_chunks
        if n_chunks > _MAX_CHUNKS:
            return
        yield xorb

"""Which chunks a client need not send: those of files that begin as the one that it has."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import func, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.visibility import readable_files, sharing_domains
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Repository, XetRange, Xorb, utc_now
from deltahub.registry.db.session import Database, ReadSession
from deltahub.registry.errors import Unavailable
from deltahub.registry.registry import Registry
from deltahub.registry.xet.epochs import repository_at
from deltahub.registry.xet.shard import answered_bytes, answered_shard
from deltahub.registry.xet.xorb import ENTRY_BYTES, XorbIndex

# How long a client may count on an answer. Chunks that go away sooner cost it one failed upload,
# after which it begins anew; to ask again costs nothing.
TTL: Final = timedelta(hours=1)
# Files that begin alike are looked through, the newest first.
_MOST_FILES: Final = 1000
# 12 MB of an answer: chunks of 16 GiB.
_MOST_CHUNKS: Final = 1 << 18
# Of a file: rows of the chunk map that are looked at.
_MOST_RANGES: Final = 4096


class _Range(NamedTuple):
    """Chunks [first, end) of a xorb, which the row of the chunk map has."""

    first: int
    end: int
    id: int


@dataclass(frozen=True)
class _Known:
    """Chunks [0, n_chunks) of a xorb: in a row of its own, or in rows of the chunk map."""

    hash: bytes
    n_chunks: int
    xorb_id: str | None
    ranges: list[_Range]


class KnownChunks:
    """A shard that tells a client of xorbs, as `size` bytes in pieces that are read one by one."""

    def __init__(self, db: Database, xorbs: Collection[_Known]) -> None:
        self._db = db
        self._xorbs = xorbs
        self.size = answered_bytes([xorb.n_chunks for xorb in xorbs])

    def pieces(self) -> Iterator[bytes]:
        """The shard, a xorb at a time, of 0.4 MB each at most.

        Unavailable if garbage collection was faster; who asks again is told of what is left.
        """
        read = ((xorb.hash, self._read(xorb)) for xorb in self._xorbs)
        return answered_shard(read, utc_now() + TTL)

    def _read(self, xorb: _Known) -> XorbIndex:
        with self._db.read() as session:
            if xorb.xorb_id is not None:
                own = session.scalar(select(Xorb.chunks).where(Xorb.id == xorb.xorb_id))
                index = XorbIndex(own or b"")
            else:
                index = XorbIndex(b"".join(_following(session, xorb)))
        if index.n_chunks != xorb.n_chunks:
            raise Unavailable("chunks were dropped while the hub listed them; ask again")
        return index


def known_chunks(reg: Registry, caller: Caller, place: str, digest: bytes) -> KnownChunks | None:
    """A shard of the xorbs of a file that begins with this chunk; None if there is none.

    Only of a file that the caller may know and the repository refer to, as when a shard that is
    sent names its chunks. RepositoryNotFound, Forbidden.
    """
    with reg.db.read() as session:
        repository = repository_at(session, caller, place, "write")
        domains = sharing_domains(session, repository)
        rows = session.scalars(
            select(XetRange.sha256)
            .where(XetRange.head == digest, XetRange.domain_id.in_(domains))
            .order_by(XetRange.id.desc())
            .limit(_MOST_FILES)
        ).all()
        readable = readable_files(session, caller, repository, rows)
        newest = next((sha256 for sha256 in rows if sha256 in readable), None)
        if newest is None:
            return None
        xorbs = list(_bounded(_xorbs_of(session, repository, newest, domains)))
    return KnownChunks(reg.db, xorbs) if xorbs else None


def _xorbs_of(
    session: ReadSession, repository: Repository, sha256: str, domains: list[int]
) -> Iterator[_Known]:
    """The file's xorbs, in the file's order, as far as they are here from their first chunk on."""
    ranges: dict[bytes, list[_Range]] = {}
    rows = session.execute(
        select(XetRange.xorb, XetRange.first, XetRange.end, XetRange.id)
        .where(XetRange.sha256 == sha256, XetRange.domain_id.in_(domains))
        .order_by(XetRange.offset)
        .limit(_MOST_RANGES)
    )
    for xorb, *part in rows:
        ranges.setdefault(xorb, []).append(_Range(*part))
    own = _own_xorbs(session, repository, ranges)
    for xorb, parts in ranges.items():
        if xorb in own:
            yield own[xorb]
            continue
        chosen = _beginning(parts)
        if chosen:
            yield _Known(xorb, chosen[-1].end, None, chosen)


def _own_xorbs(
    session: ReadSession, repository: Repository, hashes: Collection[bytes]
) -> dict[bytes, _Known]:
    """Those of the xorbs that the repository still has."""
    found: dict[bytes, _Known] = {}
    for batch in batches(hashes):
        rows = session.execute(
            select(Xorb.hash, func.length(Xorb.chunks), Xorb.id).where(
                Xorb.repository_id == repository.id, Xorb.hash.in_(batch), Xorb.state == "live"
            )
        )
        for xorb, n_bytes, xorb_id in rows:
            found[xorb] = _Known(xorb, n_bytes // ENTRY_BYTES, xorb_id, [])
    return found


def _beginning(parts: Iterable[_Range]) -> list[_Range]:
    """As few as have a xorb's chunks from the first on, without a gap.

    Of terms that overlap, as nobody but an attacker sends them, a file has any number.
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


def _following(session: ReadSession, xorb: _Known) -> Iterator[bytes]:
    """What each of the rows adds to those before it."""
    reached = 0
    for part in xorb.ranges:
        # Ids of rows come again: a row of the same xorb and chunks is as good.
        chunks = session.scalar(
            select(XetRange.chunks).where(
                XetRange.id == part.id, XetRange.xorb == xorb.hash, XetRange.first == part.first
            )
        )
        yield XorbIndex(chunks or b"").part(reached - part.first, part.end - part.first).data
        reached = part.end


def _bounded(xorbs: Iterable[_Known]) -> Iterator[_Known]:
    n_chunks = 0
    for xorb in xorbs:
        n_chunks += xorb.n_chunks
        if n_chunks > _MOST_CHUNKS:
            return
        yield xorb

"""Which chunks a client need not send: those of files that begin as the one that it has."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import select

from deltahub.registry.db.models import Repository, XetRange, Xorb, utc_now
from deltahub.registry.db.session import ReadSession
from deltahub.registry.locations import batches
from deltahub.registry.permissions import Caller, readable_files, sharing_domains
from deltahub.registry.registry import Registry
from deltahub.registry.xet.epochs import repository_at
from deltahub.registry.xet.shard import answered_shard
from deltahub.registry.xet.xorb import XorbIndex

# How long a client may count on an answer. Chunks that go away sooner cost it one failed upload,
# after which it begins anew; to ask again costs nothing.
TTL: Final = timedelta(hours=1)
# Files that begin alike are looked through, the newest first.
_MOST_FILES: Final = 1000
# 12 MB of an answer: chunks of 16 GiB.
_MOST_CHUNKS: Final = 1 << 18
# Of a file: rows of the chunk map that are looked at.
_MOST_RANGES: Final = 4096
# Xorbs whose chunks are read together, 0.3 MB each at most.
_AT_ONCE: Final = 16


class _Range(NamedTuple):
    """Chunks [first, end) of a xorb, which the row has."""

    first: int
    end: int
    id: int


def known_chunks(reg: Registry, caller: Caller, place: str, digest: bytes) -> bytes | None:
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
    return answered_shard(xorbs, utc_now() + TTL) if xorbs else None


def _xorbs_of(
    session: ReadSession, repository: Repository, sha256: str, domains: list[int]
) -> Iterator[tuple[bytes, XorbIndex]]:
    """(hash, chunks from the first on) of the file's xorbs, in the file's order."""
    ranges: dict[bytes, list[_Range]] = {}
    rows = session.execute(
        select(XetRange.xorb, XetRange.first, XetRange.end, XetRange.id)
        .where(XetRange.sha256 == sha256, XetRange.domain_id.in_(domains))
        .order_by(XetRange.offset)
        .limit(_MOST_RANGES)
    )
    for xorb, *part in rows:
        ranges.setdefault(xorb, []).append(_Range(*part))
    for batch in batches(ranges, _AT_ONCE):
        own = _own_xorbs(session, repository, batch)
        chosen = {xorb: _beginning(ranges[xorb]) for xorb in batch if xorb not in own}
        chunks = _chunks_of(session, [part.id for parts in chosen.values() for part in parts])
        for xorb in batch:
            known = own.get(xorb)
            if known is None:
                known = XorbIndex(b"".join(_following(chosen[xorb], chunks)))
            if known.n_chunks:
                yield xorb, known


def _own_xorbs(
    session: ReadSession, repository: Repository, hashes: Collection[bytes]
) -> dict[bytes, XorbIndex]:
    """Those of the xorbs that the repository still has."""
    rows = session.execute(
        select(Xorb.hash, Xorb.chunks).where(
            Xorb.repository_id == repository.id, Xorb.hash.in_(hashes), Xorb.state == "live"
        )
    )
    return {xorb: XorbIndex(chunks) for xorb, chunks in rows}


def _beginning(parts: Iterable[_Range]) -> list[_Range]:
    """Those that have a xorb's chunks from the first on, without a gap."""
    chosen: list[_Range] = []
    reached = 0
    for part in sorted(parts):
        if part.first <= reached < part.end:
            chosen.append(part)
            reached = part.end
    return chosen


def _chunks_of(session: ReadSession, ids: Collection[int]) -> dict[int, bytes]:
    rows = session.execute(select(XetRange.id, XetRange.chunks).where(XetRange.id.in_(ids)))
    return {row_id: chunks for row_id, chunks in rows}


def _following(parts: Iterable[_Range], chunks: Mapping[int, bytes]) -> Iterator[bytes]:
    """What each of the parts adds to those before it."""
    reached = 0
    for part in parts:
        yield XorbIndex(chunks[part.id]).part(reached - part.first, part.end - part.first).data
        reached = part.end


def _bounded(xorbs: Iterable[tuple[bytes, XorbIndex]]) -> Iterator[tuple[bytes, XorbIndex]]:
    n_chunks = 0
    for xorb, index in xorbs:
        n_chunks += index.n_chunks
        if n_chunks > _MOST_CHUNKS:
            return
        yield xorb, index

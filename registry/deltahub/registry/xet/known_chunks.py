"""Which chunks a client need not send: those of files that begin as the one that it has."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

from sqlalchemy import select

from deltahub.registry.db.models import Repository, XetRange, Xorb, utc_now
from deltahub.registry.db.session import ReadSession
from deltahub.registry.permissions import Caller, readable_files
from deltahub.registry.registry import Registry
from deltahub.registry.xet.epochs import repository_at
from deltahub.registry.xet.shard import answered_shard
from deltahub.registry.xet.uploads import find_xorb
from deltahub.registry.xet.xorb import XorbIndex

# How long a client may count on an answer. Chunks that go away sooner cost it one failed upload,
# after which it begins anew; to ask again costs nothing.
TTL: Final = timedelta(hours=1)
# Files that begin alike are looked through, the newest first.
_MOST_FILES: Final = 1000
# 12 MB of an answer: chunks of 16 GiB.
_MOST_CHUNKS: Final = 1 << 18


def known_chunks(reg: Registry, caller: Caller, place: str, digest: bytes) -> bytes | None:
    """A shard of the xorbs of a file that begins with this chunk; None if there is none.

    Only of a file that the caller may know and the repository refer to, as when a shard that is
    sent names its chunks. RepositoryNotFound, Forbidden.
    """
    with reg.db.read() as session:
        repository = repository_at(session, caller, place, "write")
        rows = session.scalars(
            select(XetRange.sha256)
            .where(XetRange.head == digest)
            .order_by(XetRange.id.desc())
            .limit(_MOST_FILES)
        ).all()
        readable = readable_files(session, caller, repository, rows)
        newest = next((sha256 for sha256 in rows if sha256 in readable), None)
        if newest is None:
            return None
        xorbs = list(_bounded(_xorbs_of(session, repository, newest)))
    return answered_shard(xorbs, utc_now() + TTL) if xorbs else None


def _xorbs_of(
    session: ReadSession, repository: Repository, sha256: str
) -> Iterator[tuple[bytes, XorbIndex]]:
    """(hash, chunks from the first on) of the file's xorbs, in the file's order."""
    columns = (XetRange.xorb, XetRange.first, XetRange.end, XetRange.chunks)
    ranges: dict[bytes, list[tuple[int, int, bytes]]] = {}
    for xorb, first, end, chunks in session.execute(
        select(*columns).where(XetRange.sha256 == sha256).order_by(XetRange.offset)
    ):
        ranges.setdefault(xorb, []).append((first, end, chunks))
    for xorb, parts in ranges.items():
        xorb_id = find_xorb(session, repository.id, xorb)
        row = None if xorb_id is None else session.get(Xorb, xorb_id)
        known = XorbIndex(_beginning(parts) if row is None else row.chunks)
        if known.n_chunks:
            yield xorb, known


def _beginning(parts: Iterable[tuple[int, int, bytes]]) -> bytes:
    """The chunks that are known of a xorb from its first on, without a gap."""
    known = XorbIndex(b"")
    for first, end, chunks in sorted(parts):
        if first <= known.n_chunks < end:
            rest = XorbIndex(chunks).part(known.n_chunks - first, end - first)
            known = XorbIndex(known.data + rest.data)
    return known.data


def _bounded(xorbs: Iterable[tuple[bytes, XorbIndex]]) -> Iterator[tuple[bytes, XorbIndex]]:
    n_chunks = 0
    for xorb, index in xorbs:
        n_chunks += index.n_chunks
        if n_chunks > _MOST_CHUNKS:
            return
        yield xorb, index

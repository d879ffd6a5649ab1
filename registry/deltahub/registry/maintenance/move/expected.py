"""What the database says about the bytes of an object."""

import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from blake3 import blake3
from sqlalchemy import select

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Landing, Pack, Xorb
from deltahub.registry.db.session import Database, ReadSession
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.keys import (
    COPIES,
    LANDINGS,
    PACKS,
    XORBS,
    landing_key,
    pack_key,
    second_copy_key,
    xorb_key,
)
from deltahub.registry.xet.xorb import RootDigest, XorbIndex

# Keys of rows that one query returns.
_PAGE: Final = 500


Kind = Literal["needed", "awaited", "as_is", "unknown"]
_KINDS: Final[dict[str, Kind]] = {"live": "needed", "complete": "needed", "damaged": "as_is"}


class Digest(Protocol):
    """A hash of bytes that come piece by piece, such as hashlib's."""

    def update(self, data: Buffer, /) -> object: ...

    def digest(self) -> bytes: ...


@dataclass(frozen=True)
class Expected:
    """How an object is to be treated.

    needed   its bytes have this digest, or it is damaged
    awaited  it is copied if its bytes have this digest; nobody relies on it otherwise
    as_is    bytes with this digest are best; without them it is copied as it is: it is marked as
             damaged, or it is a second copy
    unknown  no row has it; it is not copied

    digest: None if no digest is known. size: of the object, None if it is not known.
    """

    kind: Kind
    size: int | None = None
    digest: bytes | None = None
    new_digest: Callable[[], Digest] = blake3


UNKNOWN: Final = Expected("unknown")


def expectations(session: ReadSession, keys: Collection[str]) -> dict[str, Expected]:
    """What is expected of each of these objects."""
    found = dict.fromkeys(keys, UNKNOWN)
    ids = {prefix: _ids(keys, prefix) for prefix in (PACKS, LANDINGS, XORBS, COPIES)}
    for batch in batches(ids[PACKS]):
        for pack in session.execute(
            select(Pack.id, Pack.state, Pack.size, Pack.hash).where(Pack.id.in_(batch))
        ):
            found[pack_key(pack.id)] = _of_pack(*pack[1:])
    for batch in batches(ids[LANDINGS]):
        for landing in session.execute(
            select(Landing.id, Landing.state, Landing.size, Landing.sha256).where(
                Landing.id.in_(batch)
            )
        ):
            found[landing_key(landing.id)] = _of_landing(*landing[1:])
    for batch in batches(ids[XORBS]):
        for xorb in session.execute(
            select(Xorb.id, Xorb.state, Xorb.size, Xorb.hash, Xorb.chunks).where(Xorb.id.in_(batch))
        ):
            found[xorb_key(xorb.id)] = _of_xorb(*xorb[1:])
    for batch in batches(ids[COPIES]):
        for copy in session.execute(
            select(PackCopy.id, PackCopy.state, Pack.size, Pack.hash)
            .join(Pack, PackCopy.pack_id == Pack.id)
            .where(PackCopy.id.in_(batch))
        ):
            found[second_copy_key(copy.id)] = _of_copy(*copy[1:])
    return found


def keys_of_rows(db: Database) -> Iterator[str]:
    """The keys of all packs, landings, xorbs and second copies, one transaction a page."""
    for column, key_of in (
        (Pack.id, pack_key),
        (Landing.id, landing_key),
        (Xorb.id, xorb_key),
        (PackCopy.id, second_copy_key),
    ):
        last = ""
        while True:
            with db.read() as session:
                page = session.scalars(
                    select(column).where(column > last).order_by(column).limit(_PAGE)
                ).all()
            if not page:
                break
            yield from map(key_of, page)
            last = page[-1]


def _ids(keys: Collection[str], prefix: str) -> list[str]:
    return [key.rsplit("/", 1)[-1] for key in keys if key.startswith(prefix)]


def _of_pack(state: str, size: int, digest: bytes | None) -> Expected:
    # Readers still use whole frames of a damaged pack, and may use a condemned one for a while.
    return Expected(_KINDS.get(state, "awaited"), size, digest)


def _of_copy(state: str, size: int, digest: bytes | None) -> Expected:
    """A wrong second copy is no reason to stay: scrub writes it again from its pack."""
    if state == "condemned":
        return UNKNOWN
    return Expected("as_is" if state == "live" else "awaited", size, digest)


def _of_landing(state: str, size: int, sha256: str) -> Expected:
    if state == "condemned":
        return UNKNOWN
    kind = _KINDS.get(state, "awaited")
    return Expected(kind, size, bytes.fromhex(sha256), hashlib.sha256)


def _of_xorb(state: str, size: int, digest: bytes, chunks: bytes) -> Expected:
    kind = _KINDS.get(state, "awaited")
    return Expected(kind, size, digest, lambda: RootDigest(XorbIndex(chunks)))

"""Which objects a database names, in order of their keys, and what proves each of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from deltahub.registry.db.models import Landing, Pack, Xorb
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.losses.marks import is_needed_pack
from deltahub.registry.maintenance.backup.proofs import (
    Blake3Proof,
    Proof,
    Sha256Proof,
    XorbProof,
)
from deltahub.registry.storage.keys import landing_key, pack_key, second_copy_key, xorb_key
from deltahub.registry.xet.xorb import XorbIndex

_PAGE: Final = 200


@dataclass(frozen=True)
class NamedObject:
    """An object that the hub needs. proof: makes a proof of its bytes; kind, id: its row.

    second: the key at which the hub may have a second copy of the object.
    """

    key: str
    size: int
    kind: str
    id: str
    proof: Callable[[], Proof]
    second: str | None = None


def named_objects(session: Session) -> Iterator[NamedObject]:
    """All objects that the hub must not lose, by key: complete uploads, packs, xorbs.

    Packs that are still written, damaged ones without a frame that a row needs, and all that is
    condemned hold nothing that a row refers to.
    Memory: one page of rows.
    """
    yield from _landings(session)
    yield from _packs(session)
    yield from _xorbs(session)


def _landings(session: Session) -> Iterator[NamedObject]:
    last = ""
    query = select(Landing.id, Landing.size, Landing.sha256).where(Landing.state == "complete")
    while page := session.execute(
        query.where(Landing.id > last).order_by(Landing.id).limit(_PAGE)
    ).all():
        for last, size, sha256 in page:
            yield NamedObject(
                landing_key(last), size, "landing", last, partial(Sha256Proof, sha256)
            )


def _packs(session: Session) -> Iterator[NamedObject]:
    last = ""
    query = (
        select(Pack.id, Pack.size, Pack.hash, PackCopy.id)
        .outerjoin(PackCopy, and_(PackCopy.pack_id == Pack.id, PackCopy.state == "live"))
        .where(is_needed_pack())
    )
    while page := session.execute(query.where(Pack.id > last).order_by(Pack.id).limit(_PAGE)).all():
        for last, size, digest, copy_id in page:
            proof = partial(Blake3Proof, None if digest is None else digest.hex())
            # Without a hash nothing would prove that a second copy is right.
            second = second_copy_key(copy_id) if copy_id and digest else None
            yield NamedObject(pack_key(last), size, "pack", last, proof, second)


def _xorbs(session: Session) -> Iterator[NamedObject]:
    last = ""
    query = select(Xorb.id, Xorb.size, Xorb.hash, Xorb.chunks).where(Xorb.state == "live")
    while page := session.execute(query.where(Xorb.id > last).order_by(Xorb.id).limit(_PAGE)).all():
        for last, size, root, chunks in page:
            proof = partial(XorbProof, root, XorbIndex(chunks))
            yield NamedObject(xorb_key(last), size, "xorb", last, proof)

"""What the database says of unfinished uploads in a bucket, and who may change it.

A connection claims an upload with a random number, its token, and changes the rows only while they
have this token. So one that stood still for longer than its lease, while another went on, changes
nothing any more.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, exists, func, insert, select, update

from deltahub.registry.db.models import Landing, utc_now
from deltahub.registry.db.session import Database, ReadSession, WriteSession
from deltahub.registry.db.tables.spool import SpooledPart, SpooledUpload
from deltahub.registry.db.tables.stores import ObjectStore
from deltahub.registry.failpoints import reached
from deltahub.registry.storage.base import SentPart, SpoolBusy

# How long others wait for a connection that was killed. While it lives, it renews its lease.
LEASE: Final = timedelta(seconds=20)
# How far the database's clock may be set back without ending a lease.
CLOCK_SLACK: Final = timedelta(seconds=20)
# In these states the bytes of an upload may become its object.
_OPEN_STATES: Final = ("receiving", "damaged")


@dataclass(frozen=True)
class Tail:
    """The bytes after the last part, in an object of their own."""

    id: str
    size: int
    crc32: int


@dataclass(frozen=True)
class Progress:
    """What the hub has of an upload, and may acknowledge. Parts are numbered from 1 on."""

    part_bytes: int
    multipart_id: str | None = None
    parts: tuple[SentPart, ...] = ()
    tail: Tail | None = None

    @property
    def received(self) -> int:
        tail_bytes = 0 if self.tail is None else self.tail.size
        return sum(part.size for part in self.parts) + tail_bytes


@dataclass(frozen=True)
class Claimed:
    """previous: the token of the connection before. is_damaged: the object is to be replaced."""

    progress: Progress
    previous: str
    is_damaged: bool = False


def received(session: ReadSession, landing_id: str) -> int:
    """Bytes of an upload that the current store has."""
    query = (
        select(SpooledUpload.received)
        .join(ObjectStore, ObjectStore.mark == SpooledUpload.mark)
        .where(SpooledUpload.landing_id == landing_id, ObjectStore.state == "current")
    )
    return session.scalar(query) or 0


def is_free(session: ReadSession, landing_id: str) -> bool:
    """Whether no connection receives the upload."""
    row = session.get(SpooledUpload, landing_id)
    if row is None or row.receiving_until is None:
        return True
    # A later end than any lease has was written while the clock was ahead.
    return not timedelta(0) < row.receiving_until - _now(session) <= LEASE + CLOCK_SLACK


def claim(session: WriteSession, landing_id: str, token: str, part_bytes: int) -> Claimed:
    """Take an upload for this token, to receive it; SpoolBusy while another connection does.

    part_bytes: of an upload that is new here. Parts in a store that the hub has left are forgotten.
    """
    # The lock of this row keeps others from making the upload's other row at the same time.
    state = session.scalar(select(Landing.state).where(Landing.id == landing_id).with_for_update())
    if state not in _OPEN_STATES:
        raise SpoolBusy("this upload has ended on another connection")
    is_damaged = state == "damaged"
    mark = session.scalar(select(ObjectStore.mark).where(ObjectStore.state == "current"))
    assert mark is not None, "a hub that was opened for writing has a store"
    found = claim_known(session, landing_id, token)
    row = session.get(SpooledUpload, landing_id)
    if found is not None and row is not None:
        if row.mark == mark:
            return replace(found, is_damaged=is_damaged)
        session.delete(row)
        session.flush()
    new = SpooledUpload(landing_id=landing_id, mark=mark, receiver=token, part_bytes=part_bytes)
    new.received, new.receiving_until = 0, _now(session) + LEASE
    session.add(new)
    return Claimed(Progress(part_bytes), "", is_damaged)


def claim_known(session: WriteSession, landing_id: str, token: str) -> Claimed | None:
    """Take an upload for this token, to complete or drop it; SpoolBusy. None if nothing came."""
    row = session.get(SpooledUpload, landing_id, with_for_update=True)
    if row is None:
        return None
    if not is_free(session, landing_id):
        raise SpoolBusy("this upload is being received on another connection")
    previous, row.receiver = row.receiver, token
    row.receiving_until = _now(session) + LEASE
    return Claimed(_progress(session, row), previous)


def has_upload(session: ReadSession, landing_id: str) -> bool:
    return session.get(SpooledUpload, landing_id) is not None


def record(db: Database, landing_id: str, token: str, old: Progress, new: Progress) -> None:
    """Replace what is recorded, which makes it acknowledged; SpoolBusy if another has claimed it.

    Nobody makes an object of the upload's bytes before all of them are recorded here. So whoever
    claims it then finds the same parts, and can only make the same object.
    """
    n_same = 0
    for before, after in zip(old.parts, new.parts, strict=False):
        if before != after:
            break
        n_same += 1
    tail = new.tail
    with db.write_beside() as session:
        is_open = exists().where(Landing.id == landing_id, Landing.state.in_(_OPEN_STATES))
        recorded = session.scalar(
            update(SpooledUpload)
            .where(SpooledUpload.landing_id == landing_id, SpooledUpload.receiver == token, is_open)
            .values(
                received=new.received,
                part_bytes=new.part_bytes,
                multipart_id=new.multipart_id,
                tail_id=None if tail is None else tail.id,
                tail_crc32=None if tail is None else tail.crc32,
                receiving_until=_now(session) + LEASE,
            )
            .returning(SpooledUpload.landing_id)
            .execution_options(synchronize_session=False)
        )
        if recorded is None:
            raise SpoolBusy("this upload has ended, or went on, on another connection")
        session.execute(
            delete(SpooledPart).where(
                SpooledPart.landing_id == landing_id, SpooledPart.number > n_same
            )
        )
        rows = [
            {
                "landing_id": landing_id, "number": part.number, "size": part.size,
                "etag": part.etag, "crc32": part.crc32,
            }
            for part in new.parts[n_same:]
        ]  # fmt: skip
        if rows:
            session.execute(insert(SpooledPart), rows)
        reached("bucket_spool.record.before_commit")
    reached("bucket_spool.record.after_commit")


def settle(session: WriteSession, landing_id: str, token: str) -> bool:
    """Forget an upload, if this token still has it; whether it had."""
    gone = session.scalar(
        delete(SpooledUpload)
        .where(SpooledUpload.landing_id == landing_id, SpooledUpload.receiver == token)
        .returning(SpooledUpload.landing_id)
        .execution_options(synchronize_session=False)
    )
    return gone is not None


def forget(session: WriteSession, landing_id: str) -> Progress | None:
    """Forget an upload, whoever receives it; what was recorded of it."""
    row = session.get(SpooledUpload, landing_id)
    if row is None:
        return None
    progress = _progress(session, row)
    session.delete(row)
    return progress


def renew(db: Database, tokens: Collection[str]) -> None:
    """Extend the leases of these connections, unless others have claimed their uploads."""
    with db.write_beside() as session:
        session.execute(
            update(SpooledUpload)
            .where(SpooledUpload.receiver.in_(tokens), SpooledUpload.receiving_until.is_not(None))
            .values(receiving_until=_now(session) + LEASE)
            .execution_options(synchronize_session=False)
        )


def release(db: Database, landing_id: str, token: str) -> None:
    """Let others claim the upload at once."""
    with db.write_beside() as session:
        session.execute(
            update(SpooledUpload)
            .where(SpooledUpload.landing_id == landing_id, SpooledUpload.receiver == token)
            .values(receiving_until=None)
            .execution_options(synchronize_session=False)
        )


def _progress(session: ReadSession, row: SpooledUpload) -> Progress:
    parts = tuple(
        SentPart(part.number, part.size, part.etag, part.crc32)
        for part in session.scalars(
            select(SpooledPart)
            .where(SpooledPart.landing_id == row.landing_id)
            .order_by(SpooledPart.number)
        )
    )
    tail = None
    if row.tail_id is not None and row.tail_crc32 is not None:
        tail_bytes = row.received - sum(part.size for part in parts)
        tail = Tail(row.tail_id, tail_bytes, row.tail_crc32)
    return Progress(row.part_bytes, row.multipart_id, parts, tail)


def _now(session: ReadSession) -> datetime:
    """The time by the clock that all machines share: the database's."""
    if session.get_bind().dialect.name == "sqlite":
        return utc_now()  # its processes are on one machine
    # now() is when the transaction began, which may have waited since.
    found: datetime | None = session.scalar(select(func.clock_timestamp()))
    assert found is not None
    return found

"""Receives uploads in parts, resumed by offset, and verifies them before they can be used."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select

from deltahub.registry import cancellation, failpoints
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.db.models import Landing, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.errors import (
    Conflict,
    HashMismatch,
    InvalidRequest,
    LimitExceeded,
    SizeMismatch,
    UploadNotFound,
    UploadOffsetMismatch,
)
from deltahub.registry.landings.condemned import condemn, delete_condemned
from deltahub.registry.landings.damage import restore_lost
from deltahub.registry.landings.reader import hashes_of
from deltahub.registry.names import validate_sha256
from deltahub.registry.registry import Registry
from deltahub.registry.spools.base import Claim, UnfinishedUpload
from deltahub.registry.storage.base import (
    Buffer,
    ObjectNotFound,
    PartsLost,
    SpoolBusy,
    StoreFull,
)
from deltahub.registry.storage.checksums import Hashes
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.storage.refusals import translated_store_errors
from deltahub.registry.uploads import limits


@dataclass(frozen=True)
class LandingStatus:
    """The progress of an upload. received: bytes that survive a crash of the hub."""

    id: str
    sha256: str
    size: int
    received: int
    is_complete: bool


@retried
def begin(
    reg: Registry,
    caller: Caller | None,
    sha256: str,
    size: int,
    *,
    may_resize: bool = True,
    is_acknowledged: bool = True,
) -> LandingStatus:
    """Announce an upload, or find the announced one and keep it for another upload_ttl_s.

    An unfinished upload of another size takes the new size if may_resize, else SizeMismatch.
    is_acknowledged: the client will be told that the hub has a complete upload, see is_promised().
    Unauthorized, Forbidden, InvalidRequest, LimitExceeded, StorageFull.
    """
    caller = require_writer(caller)
    validate_sha256(sha256)
    if size < 0:
        raise InvalidRequest(f"a file cannot have {size} bytes")
    if size > reg.settings.max_file_bytes:
        limit = reg.settings.max_file_bytes
        raise LimitExceeded(f"the file has {size} bytes; this hub takes at most {limit}")
    limits.announce(reg, caller, {sha256: size})
    expires_at = utc_now() + timedelta(seconds=reg.settings.upload_ttl_s)
    with reg.db.write_beside() as session:
        row = _find(session, caller, sha256, is_locked=True)
        if row is None:
            row = Landing(
                id=secrets.token_hex(16), user_id=caller.user_id, sha256=sha256, size=size,
                state="receiving", expires_at=expires_at,
            )  # fmt: skip
            session.add(row)
        elif row.size != size:
            if row.state != "receiving" or not may_resize:
                raise SizeMismatch(f"upload {sha256} has {row.size} bytes, not {size}")
            row.size = size
        if row.state != "complete":
            row.expires_at = expires_at
        elif is_acknowledged:
            promise(row, reg.settings.upload_ttl_s)
    return _status(reg, row)


def status(reg: Registry, caller: Caller | None, sha256: str) -> LandingStatus:
    """The progress of the caller's upload; UploadNotFound.

    A complete upload is kept for another upload_ttl_s.
    """
    validate_sha256(sha256)
    if caller is None:
        raise upload_not_found(sha256)
    with reg.db.read() as session:
        row = _find(session, caller, sha256)
    if row is not None and row.state == "complete":
        with reg.db.write_beside() as session:
            row = _find(session, caller, sha256, is_locked=True)
            if row is not None:
                promise(row, reg.settings.upload_ttl_s)
    if row is None:
        raise upload_not_found(sha256)
    return _status(reg, row)


def promise(upload: Landing, ttl_s: int) -> None:
    """Keep a complete upload for ttl_s from now, because a client is told not to send it again."""
    upload.promised_until = upload.expires_at = utc_now() + timedelta(seconds=ttl_s)


def is_promised(upload: Landing) -> bool:
    """Whether a client was told not to send this upload again, and may still commit it.

    The row stores the time, because the process that promised may have had other settings.
    """
    return upload.promised_until is not None and upload.promised_until > utc_now()


def receive(
    reg: Registry,
    caller: Caller | None,
    sha256: str,
    total_size: int,
    offset: int,
    chunks: Iterable[Buffer],
    *,
    length: int | None = None,
    is_acknowledged: bool = True,
) -> LandingStatus:
    """Append a part at `offset`. The last part completes the upload after a check of its SHA-256.

    offset: 0 starts the upload again; any other must be the end of the bytes that the hub has
    (UploadOffsetMismatch). length: announced bytes of the part; None means up to the end or fewer.
    SizeMismatch if the body is longer, which leaves the upload as it was, or shorter, which keeps
    the received bytes. They are also kept if `chunks` raises. HashMismatch drops the upload.
    StorageFull leaves it as it was. Conflict if another connection is sending the same upload. For
    a complete upload no chunks are read. is_acknowledged: as in begin().
    """
    if not 0 <= offset <= total_size or (length or 0) > total_size - offset:
        raise InvalidRequest(f"a part at {offset} does not lie in a file of {total_size} bytes")
    upload = begin(
        reg, caller, sha256, total_size, may_resize=offset == 0, is_acknowledged=is_acknowledged
    )
    if upload.is_complete:
        return upload
    try:
        with translated_store_errors(), reg.spool.open(upload.id, total_size) as file:
            try:
                return _receive(reg, caller, upload, file, _Part(offset, chunks, length))
            except PartsLost as exc:
                file.restart()
                raise UploadOffsetMismatch(
                    f"what the hub had of {sha256} is gone ({exc}); send it again from byte 0"
                ) from exc
    except UploadOffsetMismatch:
        raise
    except Conflict:
        # The other connection may have completed or dropped the upload.
        found = status(reg, caller, sha256)
        if not found.is_complete:
            raise
        return found


@dataclass(frozen=True)
class _Part:
    """What a request sends; length as in receive()."""

    offset: int
    chunks: Iterable[Buffer]
    length: int | None


def _receive(
    reg: Registry,
    caller: Caller | None,
    upload: LandingStatus,
    file: UnfinishedUpload,
    part: _Part,
) -> LandingStatus:
    sha256, total_size, offset, length = upload.sha256, upload.size, part.offset, part.length
    # The connection that had the file before may have completed or dropped the upload.
    try:
        found = status(reg, caller, sha256)
    except UploadNotFound:
        file.discard()
        raise
    if found.is_complete or found.id != upload.id:
        file.discard()
    if found.is_complete:
        return found
    if found.id != upload.id:
        raise SpoolBusy("this upload was dropped, and has begun again, on another connection")
    if offset == 0:
        file.restart()
    if file.size != offset:
        raise UploadOffsetMismatch(
            f"the hub has {file.size} bytes of {sha256}; continue from there, not at {offset}"
        )
    end = total_size if length is None else offset + length
    _append(file, part.chunks, end)
    if file.size < end and length is not None:
        raise SizeMismatch(
            f"the body announced {length} bytes and ended after {file.size - offset}; "
            f"continue at {file.size}"
        )
    if file.size < total_size:
        return LandingStatus(upload.id, sha256, total_size, file.size, False)
    return _complete(reg, upload, file)


def complete_upload(session: ReadSession, caller: Caller | None, sha256: str) -> Landing:
    """The caller's complete, verified upload; UploadNotFound."""
    row = None if caller is None else _find(session, caller, sha256)
    if row is None or row.state != "complete":
        raise upload_not_found(sha256)
    return row


def complete(session: WriteSession, row: Landing, hashes: Hashes, ttl_s: int) -> None:
    """Mark an upload as complete, because its verified bytes are durable; it stays for ttl_s."""
    row.state = "complete"
    row.size, row.git_blob_id = hashes.n_bytes, hashes.git_blob_id
    row.checksums = hashes.checksums
    row.expires_at = utc_now() + timedelta(seconds=ttl_s)
    session.flush()
    restore_lost(session, row)


def upload_not_found(sha256: str) -> UploadNotFound:
    """The same error for uploads that are unknown, unfinished, or of another user."""
    return UploadNotFound(
        f"there is no complete upload {sha256} of yours: send its bytes before you name it, as your"
        f" client does or with PUT /v1/uploads/{sha256}"
    )


def _append(file: UnfinishedUpload, chunks: Iterable[Buffer], end: int) -> None:
    try:
        for chunk in chunks:
            if file.size + memoryview(chunk).nbytes > end:
                file.roll_back()
                raise SizeMismatch(f"the body is longer than announced; byte {end} was to be last")
            file.append(chunk)
    except StoreFull:
        file.roll_back()
        raise
    except PartsLost:
        file.restart()
        raise
    finally:
        # Also if the client has disconnected: it may resume from here.
        file.sync()


def _complete(reg: Registry, upload: LandingStatus, file: UnfinishedUpload) -> LandingStatus:
    # A client that does not wait for a long transfer to a bucket finds the upload complete when it
    # asks again. If the transfer ended with the client, the next one would begin anew.
    with cancellation.unstoppable():
        failpoints.reached("landing.complete.before_store")
        hashes = file.store(upload.sha256)
        failpoints.reached("landing.complete.after_store")
        if hashes.sha256 == upload.sha256:
            return _mark_complete(reg, upload, hashes, file)
        _drop(reg, upload, file)
    raise HashMismatch(
        f"the bytes sent have SHA-256 {hashes.sha256}, not {upload.sha256}; "
        "the upload was dropped, send it again"
    )


def _mark_complete(
    reg: Registry, upload: LandingStatus, hashes: Hashes, claim: Claim
) -> LandingStatus:
    with reg.db.write_beside() as session:
        row = session.get(Landing, upload.id, with_for_update=True)
        if row is None or row.state not in ("receiving", "complete", "damaged"):
            row, is_ours = None, True
        else:
            is_ours = claim.settle(session)
            if is_ours:
                complete(session, row, hashes, reg.settings.upload_ttl_s)
    if row is None:
        # The upload expired while its last part arrived. An object without a row must not stay.
        claim.discard()
        reg.store.delete(landing_key(upload.id))
        raise upload_not_found(upload.sha256)
    if not is_ours:
        raise SpoolBusy("another connection has begun to receive this upload")
    failpoints.reached("landing.complete.after_row")
    claim.discard()
    return LandingStatus(upload.id, upload.sha256, hashes.n_bytes, hashes.n_bytes, True)


def _drop(reg: Registry, upload: LandingStatus, file: UnfinishedUpload) -> None:
    """Drop an upload whose bytes are not those that it names."""
    with reg.db.write_beside() as session:
        row = session.get(Landing, upload.id, with_for_update=True)
        if not file.settle(session):
            return
        # Only if still unfinished: small_files.py may have completed it with the right bytes.
        is_dropped = row is not None and row.state == "receiving"
        if row is not None and is_dropped:
            condemn(row)
    file.discard()
    if is_dropped:
        delete_condemned(reg, [upload.id])


def _status(reg: Registry, row: Landing) -> LandingStatus:
    if row.state == "complete":
        return LandingStatus(row.id, row.sha256, row.size, row.size, True)
    received = reg.spool.size(row.id)
    found = LandingStatus(row.id, row.sha256, row.size, received or 0, False)
    if received in (None, row.size) and row.state == "receiving":
        return _recover(reg, found) or found
    return found


def _recover(reg: Registry, upload: LandingStatus) -> LandingStatus | None:
    """Complete an upload whose object was stored before a crash, but not its row; else None."""
    key = landing_key(upload.id)
    with reg.spool.locked(upload.id) as claim:
        if claim is None:
            return None
        try:
            size = reg.store.size(key)
        except ObjectNotFound:
            return None
        with cancellation.unstoppable():  # else a client that waits less long could never resume
            hashes = hashes_of(reg, key, size)
            if hashes is None or hashes.sha256 != upload.sha256:
                return None  # the disk is damaged, or the upload is not verified yet
            try:
                return _mark_complete(reg, upload, hashes, claim)
            except SpoolBusy:
                return None


def _find(
    session: ReadSession, caller: Caller, sha256: str, *, is_locked: bool = False
) -> Landing | None:
    query = select(Landing).where(Landing.user_id == caller.user_id, Landing.sha256 == sha256)
    return session.scalar(query.with_for_update() if is_locked else query)

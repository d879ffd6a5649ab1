"""Uploads: received in parts, resumed by offset, whole and proved before anything may use them."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, select

from deltahub.registry import failpoints
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.db.models import Landing, utc_now
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import (
    HashMismatch,
    InvalidRequest,
    LimitExceeded,
    SizeMismatch,
    UploadNotFound,
    UploadOffsetMismatch,
)
from deltahub.registry.names import validate_sha256
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import Buffer, ObjectNotFound, StoreFull
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.storage.refusals import translated_store_errors
from deltahub.registry.storage.spool import Hashes, SpoolFile

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class LandingStatus:
    """How much of an upload the hub has; `received` bytes survive a crash of the hub."""

    id: str
    sha256: str
    size: int
    received: int
    is_complete: bool


def begin(
    reg: Registry,
    caller: Caller | None,
    sha256: str,
    size: int,
    *,
    may_resize: bool = True,
    is_promise: bool = True,
) -> LandingStatus:
    """Announce an upload, or find one announced before and keep it for another upload_ttl_s.

    An unfinished one of another size takes the new size if may_resize, else SizeMismatch.
    is_promise: somebody will be told that a complete one is here, see is_promised().
    Unauthorized, Forbidden, InvalidRequest, LimitExceeded.
    """
    caller = require_writer(caller)
    validate_sha256(sha256)
    if size < 0:
        raise InvalidRequest(f"a file cannot have {size} bytes")
    if size > reg.settings.max_file_bytes:
        limit = reg.settings.max_file_bytes
        raise LimitExceeded(f"the file has {size} bytes; this hub takes at most {limit}")
    expires_at = utc_now() + timedelta(seconds=reg.settings.upload_ttl_s)
    with reg.db.write() as session:
        row = _find(session, caller, sha256)
        if row is None:
            row = Landing(
                id=secrets.token_hex(16), user_id=caller.user_id, sha256=sha256, size=size,
                state="receiving", expires_at=expires_at,
            )  # fmt: skip
            session.add(row)
        elif row.size != size:
            if row.state == "complete" or not may_resize:
                raise SizeMismatch(f"upload {sha256} has {row.size} bytes, not {size}")
            row.size = size
        if row.state != "complete":
            row.expires_at = expires_at
        elif is_promise:
            promise(row, reg.settings.upload_ttl_s)
    return _status(reg, row)


def status(reg: Registry, caller: Caller | None, sha256: str) -> LandingStatus:
    """How far the caller's upload is; a complete one is kept for another upload_ttl_s.

    UploadNotFound.
    """
    validate_sha256(sha256)
    if caller is None:
        raise upload_not_found(sha256)
    with reg.db.read() as session:
        row = _find(session, caller, sha256)
    if row is not None and row.state == "complete":
        with reg.db.write() as session:
            row = _find(session, caller, sha256)
            if row is not None:
                promise(row, reg.settings.upload_ttl_s)
    if row is None:
        raise upload_not_found(sha256)
    return _status(reg, row)


def promise(upload: Landing, ttl_s: int) -> None:
    """Keep a complete upload for ttl_s more: somebody is told that it need not be sent again."""
    upload.promised_until = upload.expires_at = utc_now() + timedelta(seconds=ttl_s)


def is_promised(upload: Landing) -> bool:
    """Whether somebody was told that this upload need not be sent again, and may yet commit it.

    Who tells and who asks are different processes, perhaps with different settings: the row says.
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
    is_promise: bool = True,
) -> LandingStatus:
    """Append a part that begins at `offset`; the last one proves the hash and completes.

    offset 0 begins anew; any other must be where the hub's copy ends (UploadOffsetMismatch).
    length: bytes that the part announces, None for "up to the end, or less". A longer body leaves
    the upload as it was; what came of a shorter one, or before `chunks` raised, is kept; both are
    SizeMismatch. HashMismatch drops the upload. StorageFull leaves it as it was. Conflict: another
    connection is sending the same upload now. What is complete already needs no chunks; is_promise
    as in begin().
    """
    if not 0 <= offset <= total_size or (length or 0) > total_size - offset:
        raise InvalidRequest(f"a part at {offset} does not lie in a file of {total_size} bytes")
    upload = begin(reg, caller, sha256, total_size, may_resize=offset == 0, is_promise=is_promise)
    if upload.is_complete:
        return upload
    end = total_size if length is None else offset + length
    with translated_store_errors(), reg.spool.open(upload.id, total_size) as file:
        # Whoever held the file before may have completed the upload, or dropped it.
        try:
            upload = status(reg, caller, sha256)
        except UploadNotFound:
            reg.spool.discard(upload.id)
            raise
        if upload.is_complete:
            reg.spool.discard(upload.id)
            return upload
        if offset == 0:
            file.restart()
        if file.size != offset:
            raise UploadOffsetMismatch(
                f"the hub has {file.size} bytes of {sha256}; continue from there, not at {offset}"
            )
        _append(file, chunks, end)
        if file.size < end and length is not None:
            raise SizeMismatch(
                f"the body announced {length} bytes and ended after {file.size - offset}; "
                f"continue at {file.size}"
            )
        if file.size < total_size:
            return LandingStatus(upload.id, sha256, total_size, file.size, False)
        return _complete(reg, upload, file)


def complete_upload(session: ReadSession, caller: Caller | None, sha256: str) -> Landing:
    """The caller's own upload, whole and proved; UploadNotFound."""
    row = None if caller is None else _find(session, caller, sha256)
    if row is None or row.state != "complete":
        raise upload_not_found(sha256)
    return row


def upload_not_found(sha256: str) -> UploadNotFound:
    """The same words for never sent, unfinished, and somebody else's."""
    return UploadNotFound(
        f"there is no complete upload {sha256} of yours: send its bytes before you name it, as your"
        f" client does or with PUT /v1/uploads/{sha256}"
    )


def _append(file: SpoolFile, chunks: Iterable[Buffer], end: int) -> None:
    try:
        for chunk in chunks:
            if file.size + memoryview(chunk).nbytes > end:
                file.roll_back()
                raise SizeMismatch(f"the body is longer than announced; byte {end} was to be last")
            file.append(chunk)
    except StoreFull:
        file.roll_back()
        raise
    finally:
        # Also when the client went away: it may continue from here.
        file.sync()


def _complete(reg: Registry, upload: LandingStatus, file: SpoolFile) -> LandingStatus:
    if file.hashes.sha256 != upload.sha256:
        with reg.db.write() as session:
            # The same bytes may have come as they should on another way, see small_files.py.
            session.execute(
                delete(Landing).where(Landing.id == upload.id, Landing.state == "receiving")
            )
        reg.spool.discard(upload.id)
        raise HashMismatch(
            f"the bytes sent have SHA-256 {file.hashes.sha256}, not {upload.sha256}; "
            "the upload was dropped, send it anew"
        )
    failpoints.reached("landing.complete.before_store")
    reg.store.take_file(landing_key(upload.id), file.path)
    failpoints.reached("landing.complete.after_store")
    return _mark_complete(reg, upload, file.hashes)


def _mark_complete(reg: Registry, upload: LandingStatus, hashes: Hashes) -> LandingStatus:
    with reg.db.write() as session:
        row = session.get(Landing, upload.id)
        if row is not None and row.state in ("receiving", "complete"):
            row.state = "complete"
            row.size = hashes.n_bytes
            row.git_blob_id = hashes.git_blob_id
            row.expires_at = utc_now() + timedelta(seconds=reg.settings.upload_ttl_s)
        else:
            row = None
    if row is None:
        # It expired while its last part came in; nothing may stay that no row knows.
        reg.store.delete(landing_key(upload.id))
        raise upload_not_found(upload.sha256)
    failpoints.reached("landing.complete.after_row")
    return LandingStatus(upload.id, upload.sha256, hashes.n_bytes, hashes.n_bytes, True)


def _status(reg: Registry, row: Landing) -> LandingStatus:
    if row.state == "complete":
        return LandingStatus(row.id, row.sha256, row.size, row.size, True)
    received = reg.spool.size(row.id)
    found = LandingStatus(row.id, row.sha256, row.size, received or 0, False)
    return (received is None and _recover(reg, found)) or found


def _recover(reg: Registry, upload: LandingStatus) -> LandingStatus | None:
    """The upload completed, if a crash came between its object and its row; else None."""
    key = landing_key(upload.id)
    try:
        size = reg.store.size(key)
        hashes = Hashes(size)
        buffer = memoryview(bytearray(_READ_BYTES))
        while hashes.n_bytes < size:
            piece = buffer[: min(_READ_BYTES, size - hashes.n_bytes)]
            reg.store.get_into(key, hashes.n_bytes, piece)
            hashes.update(piece)
    except ObjectNotFound:
        return None
    # The object was proved before it got its name; a lost disk block would show here.
    return _mark_complete(reg, upload, hashes) if hashes.sha256 == upload.sha256 else None


def _find(session: ReadSession, caller: Caller, sha256: str) -> Landing | None:
    return session.scalar(
        select(Landing).where(Landing.user_id == caller.user_id, Landing.sha256 == sha256)
    )

"""Receives xorbs: decodes, hashes and writes them; a xorb is durable before the response."""

import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import select, update

from deltahub.registry import cancellation, failpoints
from deltahub.registry.access.caller import Caller
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Repository, Xorb, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import LimitExceeded, RepositoryNotFound, Unavailable
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError, StoreUnavailable
from deltahub.registry.storage.keys import xorb_key
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.refusals import translated_store_errors
from deltahub.registry.uploads import limits
from deltahub.registry.xet.hashes import Merkle, chunk_hash
from deltahub.registry.xet.xorb import MAX_BODY_BYTES, XorbCheck, XorbIndex

log = logging.getLogger(__name__)


def receive_xorb(
    reg: Registry, sender: Caller, repository_id: int, digest: bytes, blocks: Iterable[bytes]
) -> bool:
    """Store a xorb of the repository for upload_ttl_s; False if the repository has it already.

    A stored xorb that is damaged is replaced. Precondition: the sender may write to the repository.
    InvalidRequest, HashMismatch or LimitExceeded if the body is no xorb of this hash, LimitExceeded
    if the sender has too many xorbs; then nothing is stored.
    """
    if has_xorb(reg, repository_id, digest):
        _discard(blocks)
        return False
    with scratch_file(reg, "xorb", digest.hex()[:16]) as (fd, path):
        check = XorbCheck(digest)
        for block in _bounded(blocks):
            for chunk in check.take(block):
                cancellation.check()
                reg.disk.write(fd, chunk)
        index = check.finish()
        reg.disk.fsync(fd)
        limits.announce_xorb(reg, sender, index.size)
        return _store(reg, sender, repository_id, digest, index, path)


def has_xorb(reg: Registry, repository_id: int, digest: bytes) -> bool:
    """Whether the repository has this xorb. If so, extends its expiry to upload_ttl_s from now.

    Reads the whole xorb: a damaged one is condemned, and the result is False.
    """
    with reg.db.write_beside() as session:
        extend_expiry(reg, session, repository_id, [digest])
        xorb_id = find_xorb(session, repository_id, digest)
        row = None if xorb_id is None else session.get(Xorb, xorb_id)
    if row is None:
        return False
    if is_intact(reg, row.id, XorbIndex(row.chunks), digest):
        return True
    log.error("xorb=%s damaged on the disk: dropped", row.id)
    with reg.db.write() as session:
        condemn(session, row.id)
    return False


def find_xorb(session: ReadSession, repository_id: int, digest: bytes) -> str | None:
    """The id of the repository's live xorb of this hash; None if there is none."""
    return session.scalars(
        select(Xorb.id)
        .where(Xorb.repository_id == repository_id, Xorb.hash == digest, Xorb.state == "live")
        .limit(1)
    ).first()


def extend_expiry(
    reg: Registry, session: WriteSession, repository_id: int, digests: Iterable[bytes]
) -> set[bytes]:
    """Extend the expiry of these xorbs to upload_ttl_s from now; returns those that exist."""
    found: set[bytes] = set()
    for batch in batches(digests):
        rows = session.scalars(
            update(Xorb)
            .where(Xorb.repository_id == repository_id, Xorb.hash.in_(batch), Xorb.state == "live")
            .values(expires_at=_expiry(reg))
            .returning(Xorb.hash)
            .execution_options(synchronize_session=False)
        )
        found.update(rows)
    return found


def condemn(session: WriteSession, xorb_id: str) -> None:
    """Remove the xorb from its repository. gc deletes its object and row."""
    session.execute(
        update(Xorb).where(Xorb.id == xorb_id).values(state="condemned", expires_at=utc_now())
    )


@contextmanager
def scratch_file(reg: Registry, kind: str, name: str) -> Iterator[tuple[int, Path]]:
    """(descriptor, path) of a scratch file, deleted on leaving unless the store has taken it."""
    path = reg.scratch / f"{kind}-{name}-{secrets.token_hex(8)}"
    with translated_store_errors(), translated(path.name):
        fd = reg.disk.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        try:
            yield fd, path
        finally:
            reg.disk.close(fd)
            with suppress(FileNotFoundError):  # the store has taken it
                reg.disk.unlink(path)


def _store(
    reg: Registry, sender: Caller, repository_id: int, digest: bytes, index: XorbIndex, path: Path
) -> bool:
    # The row comes first, in state writing, so that gc finds an object that a crash leaves.
    row = Xorb(
        id=secrets.token_hex(16), repository_id=repository_id, user_id=sender.user_id,
        hash=digest, size=index.size, chunks=index.data, state="writing", expires_at=_expiry(reg),
    )  # fmt: skip
    with reg.db.write_beside() as session:
        # The repository may have been deleted since the permission check.
        if session.get(Repository, repository_id) is None:
            raise RepositoryNotFound("the repository was deleted meanwhile")
        session.add(row)
    failpoints.reached("xet.xorb.before_store")
    reg.store.take_file(xorb_key(row.id), path)
    failpoints.reached("xet.xorb.after_store")
    with reg.db.write_beside(f"xorb {repository_id} {digest.hex()}") as session:
        mine = session.get(Xorb, row.id, populate_existing=True, with_for_update=True)
        is_first = find_xorb(session, repository_id, digest) is None
        is_kept = mine is not None and mine.state == "writing"
        if mine is not None and is_kept:
            # If two requests send the xorb at once, the first one stays.
            mine.state = "live" if is_first else "condemned"
            mine.expires_at = _expiry(reg)
    failpoints.reached("xet.xorb.after_row")
    if not is_kept:
        # gc has condemned the row, so the object must not stay.
        reg.store.delete(xorb_key(row.id))
    if not is_kept and is_first:
        raise Unavailable("the xorb expired while it came in; send it again")
    return is_first


def _bounded(blocks: Iterable[bytes]) -> Iterator[bytes]:
    n_bytes = 0
    for block in blocks:
        n_bytes += len(block)
        if n_bytes > MAX_BODY_BYTES:
            raise LimitExceeded(f"a xorb has at most {MAX_BODY_BYTES} bytes")
        yield block


def _discard(blocks: Iterable[bytes]) -> int:
    return sum(len(block) for block in _bounded(blocks))


def _expiry(reg: Registry) -> datetime:
    return utc_now() + timedelta(seconds=reg.settings.upload_ttl_s)


def root_in_store(reg: Registry, xorb_id: str, index: XorbIndex) -> bytes:
    """The hash of a xorb, computed from its stored bytes; StoreError. index: its chunks."""
    tree, offset = Merkle(), 0
    for _, size in index.entries():
        cancellation.check()
        chunk = memoryview(bytearray(size))
        reg.store.get_into(xorb_key(xorb_id), offset, chunk)
        tree.update([(chunk_hash(chunk), size)])
        offset += size
    return tree.root()


def is_intact(reg: Registry, xorb_id: str, index: XorbIndex, digest: bytes) -> bool:
    """Whether the xorb is there and has this hash. StoreUnavailable, which says nothing about it:
    who dropped the xorb then would lose an upload because of an answer that did not come.
    """
    try:
        return root_in_store(reg, xorb_id, index) == digest
    except StoreUnavailable:
        raise
    except StoreError:
        return False

"""Deletes uploads that their sender drops, and landed files once nothing needs them."""

from collections.abc import Iterable

from sqlalchemy import exists, select, update

from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Landing, utc_now
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import Conflict, UploadNotFound
from deltahub.registry.landings.condemned import condemn, delete_condemned
from deltahub.registry.names import validate_sha256
from deltahub.registry.registry import Registry
from deltahub.registry.uploads import limits
from deltahub.registry.uploads.landing import is_promised


def drop_upload(reg: Registry, caller: Caller | None, sha256: str) -> None:
    """Delete the caller's upload, complete or not; UploadNotFound.

    Conflict if a file is read from it, or if a connection is sending its bytes.
    """
    caller = require_writer(caller)
    validate_sha256(sha256)
    with reg.db.read() as session:
        upload_id = session.scalar(
            select(Landing.id).where(Landing.user_id == caller.user_id, Landing.sha256 == sha256)
        )
    if upload_id is None:
        raise UploadNotFound(f"you have no upload {sha256}")
    with reg.spool.locked(upload_id) as claim:
        if claim is None:
            raise Conflict(f"upload {sha256} is being received on another connection")
        with reg.db.write() as session:
            is_read = exists().where(File.landing_id == Landing.id)
            dropped = session.scalar(
                update(Landing)
                .where(Landing.id == upload_id, ~is_read)
                .values(state="condemned", sha256=f"condemned-{upload_id}", expires_at=utc_now())
                .returning(Landing.id)
                .execution_options(synchronize_session=False)
            )
        if dropped is None:
            raise Conflict(f"upload {sha256} is a file of a commit, and goes once that is ingested")
        claim.discard()
    delete_condemned(reg, [upload_id])
    limits.forget(reg, caller)


def drop_landings(session: WriteSession, files: Iterable[File]) -> list[str]:
    """Remove the landings of files that have recipes; returns ids for delete_condemned()."""
    landing_ids = []
    for file in files:
        if file.landing_id is not None:
            landing_ids.append(file.landing_id)
        file.landing_id = None
    session.flush()
    return drop_unused(session, landing_ids)


def drop_unused(session: WriteSession, landing_ids: Iterable[str]) -> list[str]:
    """Condemn landings that no file is read from; returns ids for delete_condemned().

    Call delete_condemned() after the commit. A landing that is promised to a client stays until it
    expires, because the client may commit it elsewhere. A condemned row changes its `sha256`, so
    that the same bytes may be uploaded again. It stays until its object is deleted, so that gc
    finds the object after a crash.
    """
    dropped = []
    for batch in batches(dict.fromkeys(landing_ids)):
        rows = session.scalars(
            select(Landing)
            .where(Landing.id.in_(batch))
            .order_by(Landing.id)
            .with_for_update()  # whoever uses one of them has committed before the next statement
            .execution_options(populate_existing=True)
        ).all()
        used = set(session.scalars(select(File.landing_id).where(File.landing_id.in_(batch))))
        for row in rows:
            if row.id in used or is_promised(row):
                continue
            condemn(row)
            dropped.append(row.id)
    session.flush()
    return dropped

"""What happens to an upload whose bytes on the disk are damaged or gone.

Its landing gets the state `damaged`, and the files that are read from it the state `lost`. Nobody
is told that the hub has these bytes, and the next upload of them by any user replaces them.
"""

import logging

from sqlalchemy import delete, func, select

from deltahub.registry.db.models import File, FileTensor, Landing, Revision
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.errors import DataLost
from deltahub.registry.jobs.ingest_jobs import job_to_wait_for
from deltahub.registry.losses import findings
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)


class UploadDamaged(DataLost):
    """The stored bytes of an upload are not those that arrived."""


def mark_damaged(
    reg: Registry, landing_id: str, why: str, *, is_gone: bool = False
) -> UploadDamaged | None:
    """Mark a complete upload as damaged; returns the error for its reader.

    None if the upload is not complete any more: it was ingested, deleted or replaced meanwhile.
    Files are read from another upload of the same bytes from now on, if the hub has one. A process
    that opened the hub for reading marks nothing. is_gone: the object is missing or cut short.
    """
    if reg.db.is_read_only:
        with reg.db.read() as session:
            found = session.get(Landing, landing_id)
        return None if found is None or found.state != "complete" else damage_of(found.sha256)
    with reg.db.write() as session:
        row = session.get(Landing, landing_id, with_for_update=True)
        if row is None or row.state != "complete":
            return None
        row.state, sha256 = "damaged", row.sha256
        code = "landing_missing" if is_gone else "landing_hash"
        text = findings.text_of("the upload of file", sha256, why)
        affected = findings.affected_by(session, "landing", landing_id)
        findings.report(session, "landing", landing_id, code, text, affected)
        for file in session.scalars(
            select(File).where(File.landing_id == row.id, File.state == "landed")
        ):
            file.state = "lost"
        session.flush()
        is_twin = (Landing.sha256 == sha256) & (Landing.state == "complete")
        twin = session.scalars(select(Landing).where(is_twin).limit(1)).first()
        if twin is not None:
            restore_lost(session, twin)
    log.error("landing=%s sha256=%s damaged on the disk: %s", landing_id, sha256, why)
    return damage_of(sha256)


def damage_of(sha256: str) -> UploadDamaged:
    """The error for readers of a damaged upload."""
    return UploadDamaged(
        f"the upload of file {sha256} was damaged on the hub's disk before it was ingested; push"
        " the file again to replace it"
    )


def restore_lost(session: WriteSession, upload: Landing) -> None:
    """Read lost files from the complete upload of the same bytes, and ingest them again.

    The files may belong to other users: their bytes are the same. Call it when the upload has
    become complete.
    """
    query = select(File).where(File.sha256 == upload.sha256, File.state == "lost")
    files = session.scalars(query.order_by(File.id).with_for_update()).all()
    if not files:
        return
    for file in files:
        file.state, file.landing_id, file.recipe_tensor_id = "landed", upload.id, None
        file.kind, file.note, file.ingested_at = None, None, None
    session.flush()
    session.execute(delete(FileTensor).where(FileTensor.file_id.in_([file.id for file in files])))
    for file in files:
        # One revision is enough to ingest the file. Thousands may list it.
        newest = select(func.max(Entry.revision_id)).where(Entry.file_id == file.id)
        revision = session.scalar(select(Revision).where(Revision.id == newest.scalar_subquery()))
        if revision is not None:
            job_to_wait_for(session, revision, is_restored=True)

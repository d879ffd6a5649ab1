"""Turns complete uploads into file rows that a commit can name."""

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import insert, select

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Landing
from deltahub.registry.db.session import ReadSession, WriteSession

_CHUNK = 5000


def keep_uploads(
    session: WriteSession, caller: Caller, hashes: Collection[str]
) -> dict[str, Landing]:
    """As complete_uploads(), and nobody drops one of them before this session ends."""
    return _complete_uploads(session, caller, hashes, is_locked=True)


def complete_uploads(
    session: ReadSession, caller: Caller, hashes: Collection[str]
) -> dict[str, Landing]:
    """SHA-256 -> the caller's complete, verified upload, for those of `hashes` that have one."""
    return _complete_uploads(session, caller, hashes, is_locked=False)


def _complete_uploads(
    session: ReadSession, caller: Caller, hashes: Collection[str], *, is_locked: bool
) -> dict[str, Landing]:
    found: dict[str, Landing] = {}
    ordered = sorted(hashes)
    for i in range(0, len(ordered), _CHUNK):
        query = select(Landing).where(
            Landing.user_id == caller.user_id,
            Landing.state == "complete",
            Landing.sha256.in_(ordered[i : i + _CHUNK]),
        )
        if is_locked:
            query = query.order_by(Landing.id).with_for_update()
        found.update((upload.sha256, upload) for upload in session.scalars(query))
    return found


def files_of_uploads(
    session: WriteSession, domain_id: int, uploads: Mapping[str, Landing]
) -> dict[str, File]:
    """SHA-256 -> the domain's file row of each upload, inserted if missing; few SQL statements."""
    found = _files_of(session, domain_id, uploads, is_locked=True)
    for file in found.values():
        if file.state in ("proving", "lost"):
            # The upload has the verified bytes, so the file need not wait for its recipe's job. A
            # lost file is read from the upload, and ingested again.
            upload = uploads[file.sha256]
            file.state, file.landing_id, file.recipe_tensor_id = "landed", upload.id, None
            file.size, file.git_blob_id = upload.size, upload.git_blob_id
            file.kind, file.note, file.ingested_at = None, None, None
    session.flush()
    new = [sha256 for sha256 in uploads if sha256 not in found]
    for batch in batches(new):
        cancellation.check()
        # Not as ORM objects: SQLAlchemy would insert these one by one to get their ids from SQLite.
        rows = [
            {
                "domain_id": domain_id, "sha256": sha256, "state": "landed",
                "landing_id": uploads[sha256].id, "size": uploads[sha256].size,
                "git_blob_id": uploads[sha256].git_blob_id,
            }
            for sha256 in batch
        ]  # fmt: skip
        session.execute(insert(File), rows)
    return found | _files_of(session, domain_id, new)


def _files_of(
    session: ReadSession, domain_id: int, hashes: Iterable[str], *, is_locked: bool = False
) -> dict[str, File]:
    found: dict[str, File] = {}
    for batch in batches(hashes):
        query = select(File).where(File.domain_id == domain_id, File.sha256.in_(batch))
        if is_locked:  # an ingest may be finishing one of them
            query = query.order_by(File.id).with_for_update()
        found.update((file.sha256, file) for file in session.scalars(query))
    return found

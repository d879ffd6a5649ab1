"""Makes the rows of a new revision: its branch, its declared base, its ingest."""

import hashlib
import json
from collections.abc import Collection
from datetime import datetime

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import DEFAULT_BRANCH
from deltahub.registry.catalog import declared_base
from deltahub.registry.catalog.lists.model_tags import move_main
from deltahub.registry.catalog.trees.sums import Sums, TreeFile
from deltahub.registry.db.models import Ref, Repository, Revision, utc_now
from deltahub.registry.db.session import WriteSession
from deltahub.registry.jobs import ingest_jobs


def new_revision(
    caller: Caller,
    repository: Repository,
    parent: Revision | None,
    message: str,
    declared: tuple[str | None, int | None],
) -> Revision:
    """A revision that has no commit id and is not inserted yet.

    declared: the declared base, and the id of the revision that it resolves to.
    """
    return Revision(
        repository_id=repository.id,
        parent_commit=None if parent is None else parent.commit,
        number=1 if parent is None else parent.number + 1,
        message=message,
        author_id=caller.user_id,
        created_at=utc_now(),
        declared_base=declared[0],
        declared_base_revision_id=declared[1],
    )


def commit_id_of(name: str, author: str, revision: Revision, tree: Sums) -> str:
    """SHA-1 of a JSON description of all of the revision's fields, and of its tree's sums."""
    description = {
        "deltahub commit": 2,
        "repository": name,
        "parent": revision.parent_commit,
        "author": author,
        "created_at": _timestamp(revision.created_at),
        "message": revision.message,
        "base": revision.declared_base,
        "tree": [tree.n_files, tree.hex_id],
    }
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    # SHA-1 because clients expect 40 hex digits; nothing depends on its security.
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _timestamp(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")


def insert_revision(
    session: WriteSession,
    repository: Repository,
    revision: Revision,
    ref: str,
    *,
    is_new: bool,
) -> None:
    """Insert a revision with its declared edge; point `ref` at it. The caller enqueues its ingest.

    Its tree is written already. is_new: the branch `ref` does not exist yet.
    """
    insert_alone(session, repository, revision)
    if is_new:
        session.add(
            Ref(repository_id=repository.id, kind="branch", name=ref, revision_id=revision.id)
        )
    else:
        session.get_one(Ref, (repository.id, "branch", ref)).revision_id = revision.id
    if ref == DEFAULT_BRANCH:
        move_main(session, repository, revision)


def insert_alone(session: WriteSession, repository: Repository, revision: Revision) -> None:
    """Do the same without a branch, for the caller to point one at it."""
    session.add(revision)
    session.flush()
    if revision.declared_base_revision_id is not None:
        base = session.get_one(Revision, revision.declared_base_revision_id)
        declared_base.declare(session, repository, revision, base)


def enqueue_ingest(session: WriteSession, revision: Revision) -> None:
    """Enqueue the ingest of a revision that was inserted.

    If no file has to be stored, the job only searches for relatives. No client waits for
    that, so it does not become the revision's ingest_job_id.
    """
    size = ingest_jobs.landed_bytes(session, revision)
    job_id = ingest_jobs.enqueue_ingest(session, revision, size)
    if ingest_jobs.has_landed(session, revision):
        revision.ingest_job_id = job_id


def enqueue_ingest_of_changes(
    session: WriteSession,
    revision: Revision,
    parent: Revision | None,
    arrived: Collection[TreeFile],
) -> None:
    """Do the same, but look only at the files that came with the revision.

    Files that still wait since the parent's commit are those of the parent's job, which comes
    first: the client waits for the new job, too, and it finds little to do.
    """
    waiting = {file.file_id: file.size for file in arrived if file.is_waiting}
    job_id = ingest_jobs.enqueue_ingest(session, revision, sum(waiting.values()))
    if waiting or (parent is not None and ingest_jobs.is_unsettled(session, parent)):
        revision.ingest_job_id = job_id

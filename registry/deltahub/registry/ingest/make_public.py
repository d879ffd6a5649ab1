"""Makes a private repository public: its files move to the public domain.

Private frames may be deltas of other private models. Such a frame reveals its secret base to
anybody who has the model. Private frames may also be encoded by a client. So no private frame
becomes public: every file is rebuilt and lands as if it were pushed again, then one transaction
points all entries at the new files, and the hub ingests them into the public domain.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import Select, select, update
from sqlalchemy.orm import aliased

from deltahub.registry import cancellation, failpoints
from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import domain_of, load_repository
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    File,
    Repository,
    Revision,
    is_not_ingested,
)
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry, TreeEntry, TreeNode
from deltahub.registry.db.tree_files import files_of, trees_of_repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict
from deltahub.registry.jobs import ingest_jobs, queue
from deltahub.registry.registry import Registry
from deltahub.registry.uploads.committable import complete_uploads, files_of_uploads
from deltahub.registry.uploads.landing import receive
from deltahub.registry.uploads.recipes import JOB_KIND as VERIFY_KIND
from deltahub.registry.xet.epochs import advance_epoch

# Each attempt also copies the files of pushes that arrived during the attempt before.
_ATTEMPTS = 5


def make_public(reg: Registry, reader: FileReader, caller: Caller | None, name: str) -> None:
    """Let everybody who reaches the hub read the repository, with all its revisions.

    This takes as long as reading all its files, and their size on the disk until they are ingested.
    The repository stays private until the end, also after an error. A repeated call does not read
    files again that have landed before. Conflict while a job verifies a client's recipe, or if
    pushes arrive faster than they are copied; StorageFull, DataLost.
    """
    caller = require_writer(caller)
    for _ in range(_ATTEMPTS):
        with reg.db.read() as session:
            repository = load_repository(session, caller, name, "admin")
            if not repository.is_private:
                return
            _refuse_while_verifying(session, repository)
            files = _private_files(session, repository)
            uploads = complete_uploads(session, caller, [file.sha256 for file in files])
            missing = _missing(session, uploads, files)
        for file in missing:
            cancellation.check()  # what has landed stays for the next call
            pieces = reader.stream_file(file, 0, file.size)
            receive(reg, caller, file.sha256, file.size, 0, pieces, is_acknowledged=False)
        failpoints.reached("publication.before_switch")
        with cancellation.unstoppable():
            is_public = _switch(reg, caller, name)
        if is_public:
            failpoints.reached("publication.after_switch")
            return
    raise Conflict(f"{name} changed again and again meanwhile; try again when nobody pushes to it")


def _switch(reg: Registry, caller: Caller, name: str) -> bool:
    """Make it public in one transaction. False if a file is missing; then nothing is changed."""
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "admin")
        session.refresh(repository, with_for_update=True)
        if not repository.is_private:
            return True
        _refuse_while_verifying(session, repository)
        files = _private_files(session, repository)
        uploads = complete_uploads(session, caller, [file.sha256 for file in files])
        if _missing(session, uploads, files):
            return False
        public = domain_of(session, repository.namespace_id, private=False)
        files_of_uploads(session, public.id, uploads)
        _point_to_public_files(session, public.id, repository)
        repository.is_private, repository.domain_id = False, public.id
        # Public repositories do not use chunk map rows of a private domain, because these name
        # private xorbs. So clients must forget which chunks they have sent.
        advance_epoch(session, repository.id)
        _enqueue(session, repository)
        audit.append(session, caller, "repository.make_public", name, {"files": len(files)})
        failpoints.reached("publication.before_commit")
    return True


def _private_files(session: ReadSession, repository: Repository) -> list[File]:
    """The files of all revisions that are not in the public domain, each once."""
    query = select(File).where(File.id.in_(_private_file_ids(repository))).order_by(File.id)
    return list(session.scalars(query))


def _private_file_ids(repository: Repository) -> Select[int]:
    listed = files_of(trees_of_repository(repository.id))
    return (
        select(File.id)
        .join(Domain, Domain.id == File.domain_id)
        .where(Domain.key != PUBLIC_DOMAIN_KEY, File.id.in_(listed))
    )


def _missing(session: ReadSession, uploads: Collection[str], files: Sequence[File]) -> list[File]:
    """The files that are neither in the public domain nor among the caller's uploads."""
    there = set(uploads)
    for batch in batches(file.sha256 for file in files):
        query = (
            select(File.sha256)
            .join(Domain, Domain.id == File.domain_id)
            .where(
                Domain.key == PUBLIC_DOMAIN_KEY,
                File.state.in_(("landed", "ingested")),
                File.sha256.in_(batch),
            )
        )
        there.update(session.scalars(query))
    return [file for file in files if file.sha256 not in there]


def _point_to_public_files(session: WriteSession, public_id: int, repository: Repository) -> None:
    """Point all entries of private files at the public files with the same SHA-256."""
    nodes = select(TreeNode.id).where(TreeNode.repository_id == repository.id)
    old, twin = aliased(File), aliased(File)
    public_twin = (
        select(twin.id)
        .join(old, old.sha256 == twin.sha256)
        .where(old.id == TreeEntry.file_id, twin.domain_id == public_id)
        .scalar_subquery()
    )
    # One statement for all entries, because other writers wait for this transaction. Dropped
    # revisions have entries of their own private files, which stay: these are not published.
    session.execute(
        update(TreeEntry)
        .where(
            TreeEntry.node_id.in_(nodes),
            TreeEntry.file_id.in_(_private_file_ids(repository)),
        )
        .values(file_id=public_twin)
        .execution_options(synchronize_session=False)
    )


def _enqueue(session: WriteSession, repository: Repository) -> None:
    """Enqueue the ingest of every revision that has a landed file, oldest revision first."""
    query = (
        select(Revision)
        .join(Entry, Entry.revision_id == Revision.id)
        .join(File, File.id == Entry.file_id)
        # The database begins at the few files that wait, not at all entries of the repository.
        .where(is_not_ingested(), File.state == "landed")
        .where(Revision.repository_id + 0 == repository.id)
        .order_by(Revision.id)
        .distinct()
    )
    for revision in session.scalars(query).all():
        size = ingest_jobs.landed_bytes(session, revision)
        revision.ingest_job_id = ingest_jobs.enqueue_ingest(session, revision, size)


def _refuse_while_verifying(session: ReadSession, repository: Repository) -> None:
    # The job would make a file in the private domain, and the commit would look in the public one.
    query = select(Job.id).where(
        Job.repository_id == repository.id, Job.kind == VERIFY_KIND, Job.state.in_(queue.ACTIVE)
    )
    if session.scalar(query.limit(1)) is not None:
        raise Conflict("a push to this repository is being verified; try again when it is over")

"""A private repository becomes public: its bytes move to where public data is kept.

The frames of private data may be deltas of other private models, and a frame whose base is secret
gives the base away to who knows the model; and they may be as some client encoded them. So none
of them becomes public: every file is rebuilt and lands as if it were pushed anew, then one
transaction points all entries at the new files, and the hub ingests them among public data.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import exists, select, update
from sqlalchemy.orm import aliased

from deltahub.registry import failpoints
from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import domain_of, load_repository
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    Entry,
    File,
    Job,
    Repository,
    Revision,
)
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict
from deltahub.registry.jobs import queue
from deltahub.registry.registry import Registry
from deltahub.registry.uploads import recipes
from deltahub.registry.uploads.committable import complete_uploads, files_of_uploads
from deltahub.registry.uploads.landing import receive
from deltahub.registry.xet.epochs import advance_epoch

# Pushes that come meanwhile bring new files; whoever pushes that often waits.
_ATTEMPTS = 5


def make_public(reg: Registry, reader: FileReader, caller: Caller | None, name: str) -> None:
    """Whoever reaches the hub may read the repository from now on, with all its revisions.

    Takes as long as reading all its files, and their size on the disk until they are ingested.
    Until the end it stays private, also when anything fails; then it can be asked for again, and
    what has landed by then is not read again. Conflict while a client's recipes are proved or
    pushes come in faster; StorageFull, DataLost.
    """
    caller = require_writer(caller)
    for _ in range(_ATTEMPTS):
        with reg.db.read() as session:
            repository = load_repository(session, caller, name, "admin")
            if not repository.is_private:
                return
            _refuse_while_proving(session, repository)
            files = _private_files(session, repository)
            uploads = complete_uploads(session, caller, [file.sha256 for file in files])
            missing = _missing(session, uploads, files)
        for file in missing:
            pieces = reader.stream_file(file, 0, file.size)
            receive(reg, caller, file.sha256, file.size, 0, pieces, is_answer=False)
        failpoints.reached("publication.before_switch")
        if _switch(reg, caller, name):
            failpoints.reached("publication.after_switch")
            return
    raise Conflict(f"{name} changed again and again meanwhile; try again when nobody pushes to it")


def _switch(reg: Registry, caller: Caller, name: str) -> bool:
    """Makes it public, in one transaction; False, and nothing is changed, if a file is missing."""
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "admin")
        session.refresh(repository, with_for_update=True)
        if not repository.is_private:
            return True
        _refuse_while_proving(session, repository)
        files = _private_files(session, repository)
        uploads = complete_uploads(session, caller, [file.sha256 for file in files])
        if _missing(session, uploads, files):
            return False
        public = domain_of(session, repository.namespace_id, private=False)
        files_of_uploads(session, public.id, uploads)
        _point_to_public_files(session, public.id, repository)
        repository.is_private, repository.domain_id = False, public.id
        # The chunk map says of private data where it was sent, and says it to nobody else.
        advance_epoch(session, repository.id)
        _enqueue(session, repository)
        audit.append(session, caller, "repository.make_public", name, {"files": len(files)})
        failpoints.reached("publication.before_commit")
    return True


def _private_files(session: ReadSession, repository: Repository) -> list[File]:
    """Files of all revisions that are not public data, each once."""
    listed = (
        select(Entry.file_id)
        .join(Revision, Revision.id == Entry.revision_id)
        .where(Revision.repository_id == repository.id)
    )
    query = (
        select(File)
        .join(Domain, Domain.id == File.domain_id)
        .where(Domain.key != PUBLIC_DOMAIN_KEY, File.id.in_(listed))
        .order_by(File.id)
    )
    return list(session.scalars(query))


def _missing(session: ReadSession, uploads: Collection[str], files: Sequence[File]) -> list[File]:
    """Those that are neither public data nor among the caller's uploads."""
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
    """Makes all entries of what is not public data ones of the same files that are."""
    own = select(Revision.id).where(Revision.repository_id == repository.id)
    old, twin = aliased(File), aliased(File)
    public_twin = (
        select(twin.id)
        .join(old, old.sha256 == twin.sha256)
        .where(old.id == Entry.file_id, twin.domain_id == public_id)
        .scalar_subquery()
    )
    # One statement for all: others who write wait for it.
    session.execute(
        update(Entry)
        .where(
            Entry.revision_id.in_(own),
            exists().where(old.id == Entry.file_id, old.domain_id != public_id),
        )
        .values(file_id=public_twin)
        .execution_options(synchronize_session=False)
    )


def _enqueue(session: WriteSession, repository: Repository) -> None:
    """The ingest of every revision that has a file to be ingested, the oldest first."""
    query = (
        select(Revision)
        .join(Entry, Entry.revision_id == Revision.id)
        .join(File, File.id == Entry.file_id)
        .where(Revision.repository_id == repository.id, File.state == "landed")
        .order_by(Revision.id)
        .distinct()
    )
    for revision in session.scalars(query).all():
        payload = {"revision_id": revision.id}
        revision.ingest_job_id = queue.enqueue(
            session, "ingest", payload, repository.id, revision.author_id
        )


def _refuse_while_proving(session: ReadSession, repository: Repository) -> None:
    # Its file would become one of the private domain, and be looked for in the public one.
    query = select(Job.id).where(
        Job.repository_id == repository.id,
        Job.kind == recipes.JOB_KIND,
        Job.state.in_(queue.ACTIVE),
    )
    if session.scalar(query.limit(1)) is not None:
        raise Conflict("a push to this repository is being proved; try again when it is over")

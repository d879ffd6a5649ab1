"""Publishes a job's result: a new repository with all of its branches, in one transaction."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import DEFAULT_BRANCH
from deltahub.registry.access.visibility import sharing_domains
from deltahub.registry.catalog.new_revision import (
    commit_id_of,
    enqueue_ingest,
    insert_revision,
    new_revision,
)
from deltahub.registry.catalog.operations import tree_file
from deltahub.registry.catalog.repositories import add_repository
from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.catalog.trees.sums import Change, sums_of
from deltahub.registry.catalog.trees.write import change_tree
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, LineageEdge, Ref, Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import Conflict, JobNotFound, Unavailable
from deltahub.registry.names import validate_ref, validate_tree
from deltahub.registry.packs.holds import release_job
from deltahub.registry.quotas.limits import check_used, lock_quota
from deltahub.registry.quotas.usage import measure
from deltahub.registry.registry import Registry
from deltahub.registry.uploads.committable import files_of_uploads, keep_uploads
from deltahub.registry.uploads.small_files import SmallFiles


@dataclass(frozen=True)
class Branch:
    """A branch of a result.

    files: path -> row of a file that the result may refer to. texts: path -> contents of small
    files, such as the model card. parents: the revisions that it was made from.
    """

    ref: str
    message: str
    files: Mapping[str, int]
    texts: Mapping[str, bytes]
    parents: Sequence[int]


@dataclass(frozen=True)
class Result:
    """What is published. base: the revision that all branches descend from, as a text and a row.

    edge: what the branches are to their parents; None for what the role says.
    """

    name: str
    is_private: bool
    role: str
    base: tuple[str, int]
    branches: Sequence[Branch]
    edge: str | None = None


def publish(
    reg: Registry,
    caller: Caller,
    job_id: str,
    result: Result,
    check: Callable[[WriteSession], None] = lambda session: None,
) -> str:
    """Make the repository with all of its branches; the commit of main.

    check(session): raises in the transaction if the result may not be published any more. If the
    job has published already, nothing changes. RepositoryExists, Forbidden; Conflict if the job is
    to be cancelled; Unavailable if a file was deleted meanwhile.
    """
    texts = SmallFiles(reg, caller)
    hashes = [
        {path: texts.add(data) for path, data in branch.texts.items()} for branch in result.branches
    ]
    texts.flush()
    return _publish(reg, caller, job_id, result, hashes, check)


@retried
def _publish(
    reg: Registry,
    caller: Caller,
    job_id: str,
    result: Result,
    hashes: Sequence[Mapping[str, str]],
    check: Callable[[WriteSession], None],
) -> str:
    """hashes: path -> SHA-256 of each branch's texts."""
    with reg.db.write_beside() as session:
        job = session.get(Job, job_id, with_for_update=True)
        if job is None:
            raise JobNotFound(f"the job {job_id} was deleted")
        if job.repository_id is not None:
            return _main_of(session, job.repository_id)
        if job.is_cancel_asked:  # asked before this row was locked, so that nothing is published
            raise Conflict("the job was cancelled before it published its result")
        check(session)
        made = add_repository(
            session, reg.settings, caller, result.name, private=result.is_private, role=result.role
        )
        repository = session.get_one(Repository, made.id)
        lock_quota(session, reg.settings, repository.namespace_id)
        for branch, uploads in zip(result.branches, hashes, strict=True):
            _add_branch(session, caller, repository, result, branch, uploads)
        measure(session, repository.id)
        check_used(session, reg.settings, repository.namespace_id)
        job.repository_id = repository.id
        release_job(session, job_id)
        detail = {"job": job_id, "branches": len(result.branches)}
        audit.append(session, caller, "job.publish", result.name, detail)
        return _main_of(session, repository.id)


def _main_of(session: ReadSession, repository_id: int) -> str:
    ref = session.get_one(Ref, (repository_id, "branch", DEFAULT_BRANCH))
    return session.get_one(Revision, ref.revision_id).commit


def _add_branch(
    session: WriteSession,
    caller: Caller,
    repository: Repository,
    result: Result,
    branch: Branch,
    uploads: Mapping[str, str],
) -> None:
    validate_ref(branch.ref)
    rows = _files(session, branch.files.values())
    domains = sharing_domains(session, repository)
    if any(file.domain_id not in domains for file in rows.values()):
        raise Conflict("an input became private or public while the job ran: start it again")
    files = {path: tree_file(path, rows[row]) for path, row in branch.files.items()}
    small = files_of_uploads(
        session, repository.domain_id, keep_uploads(session, caller, set(uploads.values()))
    )
    files |= {path: tree_file(path, small[sha256]) for path, sha256 in uploads.items()}
    validate_tree(files)
    revision = new_revision(caller, repository, None, branch.message, result.base)
    name, sums = f"{result.name}@{branch.ref}", sums_of(files.items())
    revision.commit = commit_id_of(name, caller.name, revision, sums)
    changed = Change(revision.number, bytes.fromhex(revision.commit))
    empty = Tree(session, None)
    revision.tree_id = change_tree(session, repository.id, empty, files, changed)
    insert_revision(session, repository, revision, branch.ref, is_new=True)
    enqueue_ingest(session, revision)
    for parent in dict.fromkeys(branch.parents):
        if parent != result.base[1]:
            session.add(
                LineageEdge(
                    child_id=revision.id,
                    parent_id=parent,
                    kind=result.edge or result.role,
                    origin="declared",
                )
            )


def _files(session: ReadSession, rows: Collection[int]) -> dict[int, File]:
    found: dict[int, File] = {}
    for batch in batches(dict.fromkeys(rows)):
        found |= {file.id: file for file in session.scalars(select(File).where(File.id.in_(batch)))}
    if any(row not in found or found[row].state == "lost" for row in rows):
        raise Unavailable("a file of the result was deleted, or was found to be lost, meanwhile")
    return found

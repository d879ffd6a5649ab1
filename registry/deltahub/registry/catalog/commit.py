"""Commits: one transaction applies operations to a branch's head and makes a new revision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select

from deltahub.registry import failpoints
from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.access.visibility import readable_files
from deltahub.registry.catalog import declared_base
from deltahub.registry.catalog.entries import EntryInfo, find_entry, list_entries
from deltahub.registry.catalog.new_revision import (
    commit_id_of,
    enqueue_ingest_of_changes,
    insert_revision,
    new_revision,
)
from deltahub.registry.catalog.operations import (
    AddFile,
    CopyFile,
    DeleteFile,
    DeleteFolder,
    Operation,
    apply_operations,
)
from deltahub.registry.catalog.refs import (
    find_ref,
    is_empty,
    may_start_without_parent,
    require_branch,
    resolve_revision,
)
from deltahub.registry.catalog.repositories import RepositoryInfo, add_repository
from deltahub.registry.catalog.reserved import MERGED, refuse_reserved
from deltahub.registry.catalog.runs.steps import NewStep, add_step, made_before
from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.catalog.trees.sums import Change, TreeFile
from deltahub.registry.catalog.trees.write import change_tree
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession, repository_key
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.errors import (
    Conflict,
    InvalidPath,
    InvalidRequest,
    LimitExceeded,
    RefMoved,
    RevisionNotFound,
    WriteConflict,
)
from deltahub.registry.jobs import ingest_jobs
from deltahub.registry.names import (
    entry_mode,
    quoted,
    validate_commit_id,
    validate_path,
    validate_ref,
    validate_sha256,
)
from deltahub.registry.quotas.limits import check_push, lock_quota
from deltahub.registry.quotas.usage import add_logical, new_bytes
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.uploads.known_files import mark_missing

__all__ = [
    "AddFile", "CommitResult", "CopyFile", "DeleteFile", "DeleteFolder", "EntryInfo", "Operation",
    "commit", "commit_of_job", "entry_mode", "find_entry", "list_entries", "resolve_revision",
    "validate_path",
]  # fmt: skip


@dataclass(frozen=True)
class CommitResult:
    """The branch's head after a commit. changed: False if the head had these contents before."""

    commit: str
    job_id: str | None  # the ingest of the new files; None when all files are ingested
    changed: bool

    @property
    def unchanged(self) -> bool:
        return not self.changed


def commit(
    reg: Registry,
    caller: Caller | None,
    name: str,
    ref: str,
    operations: Sequence[Operation],
    message: str = "",
    expected_parent: str | None = None,
    base: str | None = None,
    commit_id: str | None = None,
    step: NewStep | None = None,
) -> CommitResult:
    """Make a revision of the repository `name` and point the branch `ref` at it.

    expected_parent: the commit that the branch must point at; else RefMoved. For a new branch in a
    repository with a branch main, it is the revision at which the branch starts.
    base: the declared base, as `namespace/name[@revision]`. It is stored even if this hub has no
    model of that name. declared_base.NO_BASE declares that there is no base; None keeps the
    parent's declaration. commit_id: the id of the new revision, for mirrors. step: the commit is
    this step of a run: RefMoved if another step came first, Conflict if it is there with other
    files; if it is there with the same, nothing changes.
    Raises UploadNotFound for a SHA-256 that the caller has neither uploaded nor may read in a
    repository that shares storage with this one, Conflict if `ref` is a tag, and InvalidRequest if
    the repository keeps `ref` for the hub.
    """
    caller = require_writer(caller)
    if ref == MERGED:
        with reg.db.read() as session:
            refuse_reserved(session, load_repository(session, caller, name, "write"), ref)
    return commit_of_job(
        reg, caller, name, ref, operations, message, expected_parent, base, commit_id, step
    )


@retried
def commit_of_job(
    reg: Registry,
    caller: Caller | None,
    name: str,
    ref: str,
    operations: Sequence[Operation],
    message: str = "",
    expected_parent: str | None = None,
    base: str | None = None,
    commit_id: str | None = None,
    step: NewStep | None = None,
) -> CommitResult:
    """Do the same for a job of the hub, which may also commit to a branch that is reserved."""
    caller = require_writer(caller)
    _check_request(reg.settings, ref, operations, message, base, commit_id)
    if step is not None:
        step.check()
        if ref != DEFAULT_BRANCH:
            raise InvalidRequest(f"steps are commits of {DEFAULT_BRANCH}, not of {quoted(ref)}")
    repository_id = _mark_missing(reg, caller, name, operations)
    with reg.db.write_beside(repository_key(repository_id)) as session:
        if load_repository(session, caller, name, "write").id != repository_id:
            raise WriteConflict(f"{name} became another repository meanwhile")
        made = _commit(
            session, reg.settings, caller, name, ref, operations, message, expected_parent, base,
            commit_id, step,
        )  # fmt: skip
    if made.changed:
        failpoints.reached("revisions.commit.after_commit")
    return made


@retried
def create_with_commit(
    reg: Registry,
    caller: Caller | None,
    name: str,
    operations: Sequence[Operation],
    message: str,
    *,
    private: bool,
    copied: Revision | None = None,
) -> RepositoryInfo:
    """Make a repository and its first commit on main in one transaction.

    The arguments and errors are those of create_repository and commit. Operations may only name
    uploaded files, or copy stored ones. copied: a revision that the caller may read, whose role and
    declared base the new one gets.
    """
    caller = require_writer(caller)
    _check_request(reg.settings, DEFAULT_BRANCH, operations, message, None, None)
    with reg.db.write_beside() as session:
        original = None if copied is None else session.get(Repository, copied.repository_id)
        role = None if original is None else original.role
        made = add_repository(session, reg.settings, caller, name, private=private, role=role)
        first = _commit(
            session, reg.settings, caller, name, DEFAULT_BRANCH, operations, message, copied=copied
        )
    return replace(made, head=first.commit)


def _commit(
    session: WriteSession,
    settings: Settings,
    caller: Caller,
    name: str,
    ref: str,
    operations: Sequence[Operation],
    message: str,
    expected_parent: str | None = None,
    base: str | None = None,
    commit_id: str | None = None,
    step: NewStep | None = None,
    copied: Revision | None = None,
) -> CommitResult:
    repository = load_repository(session, caller, name, "write")
    # This row lock serializes commits. SQLite ignores it: a write transaction locks the database.
    session.refresh(repository, with_for_update=True)
    require_branch(session, repository, ref)
    if step is not None:
        made = made_before(session, repository, name, step, operations)
        if made is not None:
            job_id = ingest_jobs.job_to_wait_for(session, made, is_restored=False)
            return CommitResult(made.commit, job_id, changed=False)
    head = find_ref(session, repository, "branch", ref)
    parent = _parent(session, repository, ref, head, expected_parent)
    tree = Tree(session, None if parent is None else parent.tree_id)
    changes = apply_operations(session, caller, repository, tree, operations)
    after = changes.sums_after(tree.sums)
    if after.n_files > settings.max_entries:
        limit = settings.max_entries
        raise LimitExceeded(f"the revision would have {after.n_files} files; at most {limit}")
    declared = (
        declared_base.base_of_new(session, caller, base, parent)
        if copied is None
        else declared_base.base_of_copied(session, caller, copied)
    )
    is_same_base = head is not None and declared[0] == head.declared_base
    if head is not None and not changes.files and is_same_base:
        job_id = ingest_jobs.job_to_wait_for(session, head, is_restored=bool(changes.restored))
        if step is not None:  # no weight has changed since the step before
            add_step(session, repository, head, step)
        return CommitResult(head.commit, job_id, changed=False)
    if parent is None and not after.n_files:
        raise InvalidRequest("the first commit of a branch must add a file")
    _count_new(session, settings, repository, changes.added)
    revision = new_revision(caller, repository, parent, message, declared)
    revision.commit = commit_id or commit_id_of(name, caller.name, revision, after)
    if find_commit(session, repository, revision.commit) is not None:
        raise Conflict(f"{name} has a revision {revision.commit} already")
    changed = Change(revision.number, bytes.fromhex(revision.commit))
    revision.tree_id = change_tree(session, repository.id, tree, changes.files, changed)
    insert_revision(session, repository, revision, ref, is_new=head is None)
    if step is not None:
        add_step(session, repository, revision, step)
    arrived = [*changes.added.values(), *changes.restored]
    enqueue_ingest_of_changes(session, revision, parent, arrived)
    detail = {"ref": ref, "operations": len(operations)}
    audit.append(session, caller, "revision.commit", f"{name}@{revision.commit}", detail)
    failpoints.reached("revisions.commit.before_commit")
    return CommitResult(revision.commit, revision.ingest_job_id, changed=True)


def _count_new(
    session: WriteSession,
    settings: Settings,
    repository: Repository,
    added: Mapping[str, TreeFile],
) -> None:
    """Count the files that are new to the repository; QuotaExceeded."""
    sizes = {file.sha256: file.size for file in added.values()}
    n_bytes = new_bytes(session, repository.id, sizes)
    lock_quota(session, settings, repository.namespace_id)
    check_push(session, settings, repository.namespace_id, n_bytes)
    add_logical(session, repository.id, n_bytes)


def find_commit(session: ReadSession, repository: Repository, commit_id: str) -> Revision | None:
    """The revision with exactly this commit id."""
    return session.scalar(
        select(Revision).where(
            Revision.repository_id == repository.id, Revision.commit == commit_id
        )
    )


def _mark_missing(reg: Registry, caller: Caller, name: str, operations: Sequence[Operation]) -> int:
    """Look for missing packs of the named files, before a transaction relies on their rows.

    Returns the row of the repository.
    """
    hashes = {each.sha256 for each in operations if isinstance(each, AddFile | CopyFile)}
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        files = readable_files(session, caller, repository, hashes)
    mark_missing(reg, files.values())
    return repository.id


def _check_request(
    settings: Settings,
    ref: str,
    operations: Sequence[Operation],
    message: str,
    base: str | None,
    commit_id: str | None,
) -> None:
    validate_ref(ref)
    if len(operations) > settings.max_operations:
        raise LimitExceeded(
            f"a commit has at most {settings.max_operations} operations, not {len(operations)}"
        )
    if any(0xD800 <= ord(char) < 0xE000 for char in message):
        raise InvalidRequest("the message is not valid Unicode")
    if len(message.encode()) > settings.max_message_bytes:
        raise LimitExceeded(f"a message has at most {settings.max_message_bytes} bytes")
    if base is not None:
        declared_base.check_declared(base)
    if commit_id is not None:
        validate_commit_id(commit_id)
    seen: set[str] = set()
    for operation in operations:
        if operation.path in seen:
            raise InvalidPath(f"two operations change {quoted(operation.path)}")
        seen.add(operation.path)
        # A deletion names a path that an entry has, also one from before today's rule.
        if isinstance(operation, AddFile | CopyFile):
            validate_path(operation.path, settings.max_path_bytes)
            validate_sha256(operation.sha256)


def _parent(
    session: ReadSession,
    repository: Repository,
    ref: str,
    head: Revision | None,
    expected: str | None,
) -> Revision | None:
    if head is not None:
        if expected not in (None, head.commit):
            raise RefMoved(
                f"{quoted(ref)} is at {quoted(head.commit)}, not at {quoted(expected or '')}: fetch"
                f" what has come and try again with {quoted(head.commit)} as the parent"
            )
        return head
    if is_empty(session, repository):
        if expected is not None:
            raise RefMoved(
                f"the repository is empty, and {quoted(ref)} not at {quoted(expected)}: try again"
                " without a parent"
            )
        return None
    if expected is None and may_start_without_parent(session, repository, ref):
        return None
    start = None if expected is None else find_commit(session, repository, expected)
    if start is None:
        raise RevisionNotFound(
            f"there is no branch {ref}; name the commit that it begins at as the parent"
        )
    return start


def ingest_again(reg: Registry, caller: Caller | None, name: str, revision: str) -> None:
    """Enqueue the ingest of a revision again if it failed or was cancelled.

    For clients that send no commit when no file changed.
    """
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        if not ingest_jobs.has_failed(session, resolve_revision(session, repository, revision)):
            return
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        found = resolve_revision(session, repository, revision)
        ingest_jobs.job_to_wait_for(session, found)

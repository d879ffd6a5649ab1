"""Commits: one transaction from a list of operations to a new revision at a branch's head."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select

from deltahub.registry import failpoints
from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.catalog import declared_base
from deltahub.registry.catalog.entries import EntryInfo, find_entry, list_entries
from deltahub.registry.catalog.operations import (
    AddFile,
    CopyFile,
    DeleteFile,
    DeleteFolder,
    Node,
    Operation,
    Tree,
    apply_operations,
    tree_of,
)
from deltahub.registry.catalog.refs import (
    begins_anew,
    find_ref,
    is_empty,
    require_branch,
    resolve_revision,
)
from deltahub.registry.catalog.repositories import RepositoryInfo, add_repository
from deltahub.registry.catalog.weights import has_weights
from deltahub.registry.db.models import Entry, Job, Ref, Repository, Revision, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import (
    Conflict,
    InvalidPath,
    InvalidRequest,
    LimitExceeded,
    RefMoved,
    RevisionNotFound,
)
from deltahub.registry.jobs import queue
from deltahub.registry.names import (
    entry_mode,
    quoted,
    validate_commit_id,
    validate_path,
    validate_ref,
    validate_sha256,
    validate_tree,
)
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings

__all__ = [
    "AddFile", "CommitResult", "CopyFile", "DeleteFile", "DeleteFolder", "EntryInfo", "Operation",
    "commit", "entry_mode", "find_entry", "list_entries", "resolve_revision", "validate_path",
]  # fmt: skip


@dataclass(frozen=True)
class CommitResult:
    """The branch's head after a commit. changed is False when it had these contents before."""

    commit: str
    job_id: str | None  # the ingest of what is new; None when all is ingested
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
) -> CommitResult:
    """Make a revision of the repository `name` and point the branch `ref` at it.

    expected_parent: RefMoved unless the branch is there; for a branch that does not exist yet in
    a repository with a branch main, the revision to begin it at. base: what this was made from, as
    `namespace/name[@revision]`; kept even if nothing here has that name; lineage.NO_BASE declares
    that there is none, None leaves what the parent declared. commit_id: for mirrors, the id to
    give. UploadNotFound for a SHA-256 that the caller has neither uploaded nor may read
    in a repository that shares storage with this one. Conflict for the name of a tag.
    """
    caller = require_writer(caller)
    _check_request(reg.settings, ref, operations, message, base, commit_id)
    with reg.db.write() as session:
        made = _commit(
            session, reg.settings, caller, name, ref, operations, message, expected_parent, base,
            commit_id,
        )  # fmt: skip
    if made.changed:
        failpoints.reached("revisions.commit.after_commit")
    return made


def create_begun(
    reg: Registry,
    caller: Caller | None,
    name: str,
    operations: Sequence[Operation],
    message: str,
    *,
    private: bool,
) -> RepositoryInfo:
    """A new repository with a first commit on main, both or neither.

    As create_repository and commit; the operations may name uploads alone.
    """
    caller = require_writer(caller)
    _check_request(reg.settings, DEFAULT_BRANCH, operations, message, None, None)
    with reg.db.write() as session:
        made = add_repository(session, caller, name, private=private)
        _commit(session, reg.settings, caller, name, DEFAULT_BRANCH, operations, message)
    return made


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
) -> CommitResult:
    repository = load_repository(session, caller, name, "write")
    # One commit at a time; SQLite has locked everything already and ignores this.
    session.refresh(repository, with_for_update=True)
    require_branch(session, repository, ref)
    head = find_ref(session, repository, "branch", ref)
    parent = _parent(session, repository, ref, head, expected_parent)
    before = tree_of(session, parent)
    tree = apply_operations(session, caller, repository, before, operations)
    if len(tree) > settings.max_entries:
        limit = settings.max_entries
        raise LimitExceeded(f"the revision would have {len(tree)} files; at most {limit}")
    validate_tree(tree)
    declared = _declared(session, caller, base, parent)
    is_same_base = head is not None and declared[0] == head.declared_base
    if head is not None and tree == before and is_same_base:
        return CommitResult(head.commit, _job_of(session, head, tree), changed=False)
    if parent is None and not tree:
        raise InvalidRequest("the first commit of a branch must add a file")
    revision = _revision(caller, repository, parent, message, declared)
    revision.commit = commit_id or _commit_id(name, caller, revision, tree)
    if find_commit(session, repository, revision.commit) is not None:
        raise Conflict(f"{name} has a revision {revision.commit} already")
    _insert(session, repository, revision, tree, ref, is_new=head is None)
    detail = {"ref": ref, "operations": len(operations)}
    audit.append(session, caller, "revision.commit", f"{name}@{revision.commit}", detail)
    failpoints.reached("revisions.commit.before_commit")
    return CommitResult(revision.commit, revision.ingest_job_id, changed=True)


def find_commit(session: ReadSession, repository: Repository, commit_id: str) -> Revision | None:
    """The revision with exactly this commit id."""
    return session.scalar(
        select(Revision).where(
            Revision.repository_id == repository.id, Revision.commit == commit_id
        )
    )


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
        path = validate_path(operation.path, settings.max_path_bytes)
        if path in seen:
            raise InvalidPath(f"two operations change {quoted(path)}")
        seen.add(path)
        if isinstance(operation, AddFile | CopyFile):
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
    if expected is None and begins_anew(session, repository, ref):
        return None
    start = None if expected is None else find_commit(session, repository, expected)
    if start is None:
        raise RevisionNotFound(
            f"there is no branch {ref}; name the commit that it begins at as the parent"
        )
    return start


def _declared(
    session: ReadSession, caller: Caller, base: str | None, parent: Revision | None
) -> tuple[str | None, int | None]:
    """The base that a new revision declares, and the row of the revision that it stands for."""
    if base is None and parent is not None:
        if parent.declared_base_revision_id is not None:
            return parent.declared_base, parent.declared_base_revision_id
        base = parent.declared_base  # which may have come meanwhile
    if base is None or base == declared_base.NO_BASE:
        return None, None
    found = declared_base.resolve_declared(session, caller, base)
    row = None if found is None else found.id
    is_usable = row is not None and has_weights(session, row)
    if not is_usable and parent is not None and base == parent.declared_base:
        # Said again, as a card does with each commit; what it stood for may have moved meanwhile,
        # and an empty model have the name.
        row = parent.declared_base_revision_id or row
    return base, row


def _revision(
    caller: Caller,
    repository: Repository,
    parent: Revision | None,
    message: str,
    declared: tuple[str | None, int | None],
) -> Revision:
    return Revision(
        repository_id=repository.id,
        parent_commit=None if parent is None else parent.commit,
        message=message,
        author_id=caller.user_id,
        created_at=utc_now(),
        declared_base=declared[0],
        declared_base_revision_id=declared[1],
    )


def _commit_id(name: str, caller: Caller, revision: Revision, tree: Tree) -> str:
    """SHA-1 of a description that holds everything a revision says."""
    entries = [[path, node.mode, node.sha256, node.size] for path, node in sorted(tree.items())]
    description = {
        "deltahub commit": 1,
        "repository": name,
        "parent": revision.parent_commit,
        "author": caller.name,
        "created_at": _moment(revision.created_at),
        "message": revision.message,
        "base": revision.declared_base,
        "entries": entries,
    }
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    # A name of 40 digits as clients expect, not a protection.
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")


def _insert(
    session: WriteSession,
    repository: Repository,
    revision: Revision,
    tree: Tree,
    ref: str,
    *,
    is_new: bool,
) -> None:
    session.add(revision)
    session.flush()
    if tree:
        session.execute(insert(Entry), [_row(revision, path, node) for path, node in tree.items()])
    if revision.declared_base_revision_id is not None:
        base = session.get_one(Revision, revision.declared_base_revision_id)
        declared_base.declare(session, repository, revision, base)
    if is_new:
        session.add(
            Ref(repository_id=repository.id, kind="branch", name=ref, revision_id=revision.id)
        )
    else:
        session.get_one(Ref, (repository.id, "branch", ref)).revision_id = revision.id
    _enqueue_ingest(session, revision, tree)


def _row(revision: Revision, path: str, node: Node) -> dict[str, object]:
    return {
        "revision_id": revision.id,
        "path": path,
        "file_id": node.file_id,
        "mode": node.mode,
    }


def _enqueue_ingest(session: WriteSession, revision: Revision, tree: Tree) -> None:
    """The job of a new revision. Where its files came as recipes it only finds relatives, and
    nobody waits for it: then it is not the revision's ingest_job_id."""
    job_id = queue.enqueue(
        session,
        "ingest",
        {"revision_id": revision.id},
        revision.repository_id,
        revision.author_id,
    )
    if not all(node.is_ingested for node in tree.values()):
        revision.ingest_job_id = job_id


def _job_of(session: WriteSession, revision: Revision, tree: Tree) -> str | None:
    """The job that ingests the revision; one that has failed is asked for again."""
    if all(node.is_ingested for node in tree.values()):
        return None
    job = None if revision.ingest_job_id is None else session.get(Job, revision.ingest_job_id)
    if job is None or job.state not in queue.ACTIVE:
        _enqueue_ingest(session, revision, tree)
    return revision.ingest_job_id

"""Branches and tags, and the lookup of revisions by name."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import delete, exists, select

from deltahub.registry import cancellation
from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.catalog.lists.model_tags import move_main
from deltahub.registry.catalog.reserved import refuse_reserved
from deltahub.registry.catalog.runs.steps import (
    find_step,
    refuse_step_name,
    step_named,
    why_no_step,
)
from deltahub.registry.db.models import Ref, Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession, repository_key
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.errors import (
    Conflict,
    InvalidRequest,
    RepositoryNotFound,
    RevisionNotFound,
    WriteConflict,
)
from deltahub.registry.names import quoted, validate_ref
from deltahub.registry.registry import Registry

KINDS = ("branch", "tag")
PAGE_REFS = 1000
MIN_PREFIX = 7
_BRANCHES, _TAGS = "refs/heads/", "refs/tags/"
_HEX = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True)
class RefInfo:
    kind: str  # branch | tag
    name: str
    commit: str


def resolve_revision(session: ReadSession, repository: Repository, revision: str) -> Revision:
    """The revision that a tag, a branch, a step, a commit id or a unique prefix of one names.

    `refs/heads/<branch>` and `refs/tags/<tag>` choose one kind. Raises RevisionNotFound, also for a
    prefix that several commits share.
    """
    # Older releases allowed a branch and a tag of one name. The tag wins, because clients that
    # pinned it expect its bytes. For main the branch wins: clients without a pin read it.
    kinds = ("branch", "tag") if revision == DEFAULT_BRANCH else ("tag", "branch")
    if revision.startswith(_BRANCHES):
        found = find_ref(session, repository, "branch", revision.removeprefix(_BRANCHES))
    elif revision.startswith(_TAGS):
        found = find_ref(session, repository, "tag", revision.removeprefix(_TAGS))
    else:
        found = (
            find_ref(session, repository, kinds[0], revision)
            or find_ref(session, repository, kinds[1], revision)
            or _by_step(session, repository, revision)
            or _by_commit(session, repository, revision)
        )
    if found is None:
        raise RevisionNotFound(_why_not_found(session, repository, revision))
    return found


def find_ref(session: ReadSession, repository: Repository, kind: str, name: str) -> Revision | None:
    """The revision that a branch or tag points at; None if there is no such ref."""
    return session.scalar(
        select(Revision)
        .join(Ref, Ref.revision_id == Revision.id)
        .where(Ref.repository_id == repository.id, Ref.kind == kind, Ref.name == name)
    )


def is_tag(session: ReadSession, repository: Repository, revision: str) -> bool:
    """Whether resolve_revision() takes this name for that of a tag."""
    if revision == DEFAULT_BRANCH or revision.startswith(_BRANCHES):
        return False
    return find_ref(session, repository, "tag", revision.removeprefix(_TAGS)) is not None


def ref_pages(reg: Registry, repository: Repository, kind: str) -> Iterator[list[RefInfo]]:
    """All branches or all tags by name, PAGE_REFS at a time, each page as it is when it is read.

    RepositoryNotFound if the repository is deleted before the end.
    """
    after = ""
    while True:
        cancellation.check()
        with reg.db.read() as session:
            now = session.get(Repository, repository.id)
            if now is None or now.created_at != repository.created_at:
                raise RepositoryNotFound("the repository has been deleted")
            found = list_refs(session, repository, kind, after, PAGE_REFS)
        yield found
        if len(found) < PAGE_REFS:
            return
        after = found[-1].name


def list_refs(
    session: ReadSession, repository: Repository, kind: str, after: str, limit: int
) -> list[RefInfo]:
    """The first branches or tags whose names sort after a name."""
    query = (
        select(Ref.kind, Ref.name, Revision.commit)
        .join(Revision, Revision.id == Ref.revision_id)
        .where(Ref.repository_id == repository.id, Ref.kind == kind, Ref.name > after)
        .order_by(Ref.name)
        .limit(limit)
    )
    return [RefInfo(*row) for row in session.execute(query)]


@retried
def create_ref(
    reg: Registry, caller: Caller | None, name: str, kind: str, ref: str, revision: str
) -> RefInfo:
    """Make a branch or tag at a revision of the repository.

    Raises Conflict if a branch or a tag has the name, InvalidRequest for a tag named main and for
    the name that an adapter's repository keeps for the hub.
    """
    _check_kind(kind)
    validate_ref(ref)
    if (kind, ref) == ("tag", DEFAULT_BRANCH):
        raise InvalidRequest(f"{ref} is the default branch; a tag cannot have its name")
    with reg.db.read() as session:
        repository_id = load_repository(session, caller, name, "write").id
    with reg.db.write_beside(repository_key(repository_id)) as session:
        repository = load_repository(session, caller, name, "write")
        if repository.id != repository_id:
            raise WriteConflict(f"{name} became another repository meanwhile")
        # Serializes refs and commits. SQLite ignores it: a write transaction locks the database.
        session.refresh(repository, with_for_update=True)
        refuse_reserved(session, repository, ref)
        other = "tag" if kind == "branch" else "branch"
        if find_ref(session, repository, other, ref) is not None:
            raise Conflict(
                f"{ref} is a {other} of {name}; a {kind} cannot have its name: take another, or"
                f" remove the {other}"
            )
        refuse_step_name(session, repository, name, ref)
        target = resolve_revision(session, repository, revision)
        if find_ref(session, repository, kind, ref) is not None:
            raise Conflict(f"{name} has a {kind} {ref} already")
        session.add(Ref(repository_id=repository.id, kind=kind, name=ref, revision_id=target.id))
        if (kind, ref) == ("branch", DEFAULT_BRANCH):
            move_main(session, repository, target)
        audit.append(session, caller, "ref.create", name, {"kind": kind, "ref": ref})
        return RefInfo(kind, ref, target.commit)


def delete_ref_row(
    session: WriteSession, repository: Repository, name: str, kind: str, ref: str
) -> None:
    """Remove a branch or tag of the repository `name`, but not its revisions.

    InvalidRequest for the branch main; RevisionNotFound.
    """
    _check_kind(kind)
    if (kind, ref) == ("branch", DEFAULT_BRANCH):
        raise InvalidRequest(f"the branch {DEFAULT_BRANCH} cannot be removed")
    if find_ref(session, repository, kind, ref) is None:
        raise RevisionNotFound(f"{name} has no {kind} {quoted(ref)}")
    session.execute(
        delete(Ref).where(Ref.repository_id == repository.id, Ref.kind == kind, Ref.name == ref)
    )


def require_branch(session: ReadSession, repository: Repository, ref: str) -> None:
    """Raise Conflict if `ref` is a tag: a commit would move it."""
    if ref != DEFAULT_BRANCH and find_ref(session, repository, "tag", ref) is not None:
        raise Conflict(
            f"{ref} is a tag of {full_name(session, repository)}, which stays where it is: commit"
            " to a branch"
        )


def is_empty(session: ReadSession, repository: Repository) -> bool:
    """Whether the repository has no revision."""
    return not session.scalar(
        select(exists(select(Revision.id).where(Revision.repository_id == repository.id)))
    )


def may_start_without_parent(session: ReadSession, repository: Repository, ref: str) -> bool:
    """Whether a commit to this branch needs no parent: neither the branch nor main exists.

    If the first commits of a repository went to another branch, main can be made this way. As in
    git, it then shares no history with that branch.
    """
    branches = [find_ref(session, repository, "branch", each) for each in (ref, DEFAULT_BRANCH)]
    return branches == [None, None]


def _by_step(session: ReadSession, repository: Repository, revision: str) -> Revision | None:
    number = step_named(revision)
    return None if number is None else find_step(session, repository, number)


def _by_commit(session: ReadSession, repository: Repository, prefix: str) -> Revision | None:
    if not _HEX.fullmatch(prefix):
        return None
    in_repository = select(Revision).where(Revision.repository_id == repository.id)
    if len(prefix) == 40:
        return session.scalar(in_repository.where(Revision.commit == prefix))
    # "g" sorts after every hex digit. A range can use the index, LIKE cannot.
    matching = in_repository.where(Revision.commit >= prefix, Revision.commit < prefix + "g")
    found = session.scalars(matching.limit(2)).all()
    return found[0] if len(found) == 1 else None


def _why_not_found(session: ReadSession, repository: Repository, revision: str) -> str:
    name = full_name(session, repository)
    if is_empty(session, repository):
        return f"{name} is empty: nothing has been committed yet"
    number = step_named(revision)
    if number is not None:
        return why_no_step(session, repository, name, number)
    return (
        f"{name} has no branch, tag or commit {quoted(revision)}"
        f" (a shortened commit needs {MIN_PREFIX} digits and one match)"
    )


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise InvalidRequest(f"{quoted(kind)} is no kind of ref: branch or tag")

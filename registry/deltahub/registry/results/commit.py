"""Adds a job's result to a repository that exists, as a commit on top of the revision it read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.commit import commit_of_job
from deltahub.registry.catalog.entries import entries_at, list_entries
from deltahub.registry.catalog.operations import AddFile, CopyFile, DeleteFile, Operation
from deltahub.registry.catalog.refs import create_ref, find_ref, resolve_revision
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File
from deltahub.registry.db.session import repository_key
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.errors import RefMoved, Unavailable
from deltahub.registry.packs.holds import hold_for_user
from deltahub.registry.registry import Registry
from deltahub.registry.uploads.small_files import SmallFiles


@dataclass(frozen=True)
class Addition:
    """A commit on a branch, on top of a commit that the job has read.

    parent: the commit that the branch must be at; of a branch that is_whole, where it begins.
    tag: a name that the parent gets. files: path -> row of a file that the job has made or read;
    texts: path -> contents; removed: paths. base: `namespace/name[@revision]`. is_whole: the branch
    has these files and no others, whatever it had before.
    """

    name: str
    branch: str
    parent: str
    message: str
    files: Mapping[str, int]
    texts: Mapping[str, bytes]
    base: str | None
    tag: str | None = None
    is_whole: bool = False
    removed: Sequence[str] = ()


def add_commit(reg: Registry, caller: Caller, addition: Addition) -> str:
    """Make the commit, and the tag; the id of the commit.

    If it was made before by the same job, nothing changes. RefMoved if somebody else has pushed
    meanwhile; the errors of `commit_of_job` and `create_ref`.
    """
    texts = SmallFiles(reg, caller)
    sizes = {path: (texts.add(data), len(data)) for path, data in addition.texts.items()}
    texts.flush()
    operations: list[Operation] = [AddFile(path, *each) for path, each in sizes.items()]
    made = _held(reg, caller, addition)
    operations += [CopyFile(path, sha256) for path, sha256 in made.items()]
    operations += [DeleteFile(path) for path in addition.removed]
    parent = addition.parent
    if addition.is_whole:
        parent, others = _other_files(reg, caller, addition)
        operations += [DeleteFile(path) for path in others]
    # First the tag: a rule of retention may drop what no branch or tag reaches.
    if addition.tag is not None and not _is_tagged(reg, caller, addition, addition.tag):
        create_ref(reg, caller, addition.name, "tag", addition.tag, addition.parent)
    try:
        head = commit_of_job(
            reg, caller, addition.name, addition.branch, operations, addition.message, parent,
            addition.base,
        ).commit  # fmt: skip
    except RefMoved:
        wanted = made | {path: sha256 for path, (sha256, _) in sizes.items()}
        known = _own_head(reg, caller, addition, wanted)
        if known is None:
            raise
        head = known
    return head


def _is_tagged(reg: Registry, caller: Caller, addition: Addition, tag: str) -> bool:
    with reg.db.read() as session:
        repository = load_repository(session, caller, addition.name, "write")
        tagged = find_ref(session, repository, "tag", tag)
        return tagged is not None and tagged.commit == addition.parent


def _other_files(reg: Registry, caller: Caller, addition: Addition) -> tuple[str, list[str]]:
    """(the commit that the branch is at or begins at, its files that the addition does not have)"""
    with reg.db.read() as session:
        repository = load_repository(session, caller, addition.name, "write")
        head = find_ref(session, repository, "branch", addition.branch)
        before = head or resolve_revision(session, repository, addition.parent)
        wanted = addition.files.keys() | addition.texts.keys()
        paths = [entry.path for entry in list_entries(session, before)]
        return before.commit, [path for path in paths if path not in wanted]


@retried
def _held(reg: Registry, caller: Caller, addition: Addition) -> dict[str, str]:
    """Path -> SHA-256 of the made files, which the caller may commit to this repository now."""
    with reg.db.read() as session:
        repository_id = load_repository(session, caller, addition.name, "write").id
    with reg.db.write_beside(repository_key(repository_id)) as session:
        rows = set(addition.files.values())
        found = {
            file.id: file
            for batch in batches(rows)
            for file in session.scalars(select(File).where(File.id.in_(batch)))
        }
        recipes = [file.recipe_tensor_id for file in found.values()]
        if len(found) < len(rows) or None in recipes:
            raise Unavailable("a file of the result was deleted meanwhile")
        hold_for_user(
            session,
            [row for row in recipes if row is not None],
            caller.user_id,
            repository_id,
            reg.settings.hold_ttl_s,
        )
        return {path: found[row].sha256 for path, row in addition.files.items()}


def _own_head(
    reg: Registry, caller: Caller, addition: Addition, wanted: Mapping[str, str]
) -> str | None:
    """The branch's head if it is this addition already, made before the job was interrupted."""
    with reg.db.read() as session:
        repository = load_repository(session, caller, addition.name, "write")
        head = find_ref(session, repository, "branch", addition.branch)
        if head is None or head.parent_commit != addition.parent:
            return None
        there = entries_at(session, head, list(wanted))
        is_same = all(
            path in there and there[path].sha256 == sha256 for path, sha256 in wanted.items()
        )
        return head.commit if is_same else None

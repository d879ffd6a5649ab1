"""Rewrites history: one commit instead of many, or the same commits without some files."""

from collections.abc import Collection, Mapping

from sqlalchemy import select, update

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.permissions import full_name
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.catalog.lists.model_tags import move_main
from deltahub.registry.catalog.new_revision import (
    commit_id_of,
    enqueue_ingest,
    insert_alone,
    insert_revision,
    new_revision,
)
from deltahub.registry.catalog.refs import find_ref, require_branch
from deltahub.registry.catalog.trees.nodes import free
from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.catalog.trees.write import without_files
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Ref, Repository, Revision, User
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tree_files import is_listed_by
from deltahub.registry.errors import RevisionNotFound
from deltahub.registry.names import quoted
from deltahub.registry.registry import Registry
from deltahub.registry.retention.drop import drop_unreachable


def squash(reg: Registry, caller: Caller | None, name: str, branch: str, message: str) -> str:
    """Make one commit of a branch's history, with the files of its head; the commit's id.

    Commits that no other branch or tag reaches are dropped. RevisionNotFound; Conflict for a tag.
    """
    caller = require_writer(caller)
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        session.refresh(repository, with_for_update=True)
        require_branch(session, repository, branch)
        head = find_ref(session, repository, "branch", branch)
        if head is None:
            raise RevisionNotFound(f"{name} has no branch {quoted(branch)}")
        declared = head.declared_base, head.declared_base_revision_id
        squashed = new_revision(caller, repository, None, message, declared)
        squashed.number = head.number  # it stands for all before it: see TreeEntry
        squashed.tree_id = head.tree_id
        sums = Tree(session, head.tree_id).sums
        squashed.commit = commit_id_of(name, caller.name, squashed, sums)
        insert_revision(session, repository, squashed, branch, is_new=False)
        enqueue_ingest(session, squashed)
        drop_unreachable(session, caller, repository, "squashed", {head.id: squashed.id})
        detail = {"branch": branch}
        audit.append(session, caller, "revision.squash", f"{name}@{squashed.commit}", detail)
        return squashed.commit


def delete_files(
    reg: Registry, caller: Caller | None, name: str, hashes: Collection[str]
) -> list[str]:
    """Rewrite all branches and tags so that no revision has these files; SHA-256 of those found.

    Every commit from the first one with such a file on gets a new id; author, date and message
    stay. The old ones are dropped. Other repositories with the same bytes keep them.
    """
    caller = require_writer(caller)
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        session.refresh(repository, with_for_update=True)
        found = _files(session, repository, hashes)
        if not found:
            return []
        trees = without_files(session, repository.id, set(found))
        heirs = _rewrite(session, repository, trees)
        for old, new in heirs.items():
            session.execute(
                update(Ref)
                .where(Ref.repository_id == repository.id, Ref.revision_id == old)
                .values(revision_id=new)
            )
        main = find_ref(session, repository, "branch", DEFAULT_BRANCH)
        if main is not None:
            move_main(session, repository, main)
        drop_unreachable(session, caller, repository, "file deleted", heirs)
        # Those of revisions that were dropped before: these keep the trees that they had.
        free(session, (tree_id for tree_id in trees.values() if tree_id is not None))
        deleted = sorted(found.values())
        detail = {"files": deleted[:100], "n_files": len(deleted), "revisions": len(heirs)}
        audit.append(session, caller, "file.delete", name, detail)
        return deleted


def _files(session: ReadSession, repository: Repository, hashes: Collection[str]) -> dict[int, str]:
    """Row -> SHA-256 of the files with these hashes that a revision of the repository lists."""
    found: dict[int, str] = {}
    for batch in batches(sorted(set(hashes))):
        query = select(File.id, File.sha256).where(
            File.sha256.in_(batch), is_listed_by(repository.id)
        )
        found.update((row_id, sha256) for row_id, sha256 in session.execute(query))
    return found


def _rewrite(
    session: WriteSession, repository: Repository, trees: Mapping[int, int | None]
) -> dict[int, int]:
    """Make revisions with other trees, old -> new; old revision -> new, the oldest first."""
    own = select(Revision).where(Revision.repository_id == repository.id).order_by(Revision.id)
    name = full_name(session, repository)
    heirs: dict[int, int] = {}
    renamed: dict[str, str] = {}
    for old in session.scalars(own).all():
        if old.tree_id not in trees and old.parent_commit not in renamed:
            continue
        parent = None if old.parent_commit is None else renamed.get(old.parent_commit)
        tree_id = trees.get(old.tree_id, old.tree_id) if old.tree_id is not None else None
        new = _without(session, repository, name, old, parent or old.parent_commit, tree_id)
        heirs[old.id], renamed[old.commit] = new.id, new.commit
    return heirs


def _without(
    session: WriteSession,
    repository: Repository,
    name: str,
    old: Revision,
    parent: str | None,
    tree_id: int | None,
) -> Revision:
    author = None if old.author_id is None else session.get(User, old.author_id)
    new = Revision(
        repository_id=repository.id,
        parent_commit=parent,
        number=old.number,
        message=old.message,
        author_id=old.author_id,
        created_at=old.created_at,
        declared_base=old.declared_base,
        declared_base_revision_id=old.declared_base_revision_id,
        tree_id=tree_id,
    )
    sums = Tree(session, tree_id).sums
    new.commit = commit_id_of(name, "" if author is None else author.name, new, sums)
    insert_alone(session, repository, new)
    enqueue_ingest(session, new)
    return new

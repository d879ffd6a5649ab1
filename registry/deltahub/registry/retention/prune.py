"""Drops old revisions from the middle of history, by a rule; the others keep their ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import select, update

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.refs import KINDS
from deltahub.registry.catalog.runs.steps import numbers_of
from deltahub.registry.catalog.trees.nodes import leaves_below
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, Ref, Repository, Revision, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.trees import TreeEntry
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.quotas.usage import measure, usage_of_repository
from deltahub.registry.registry import Registry
from deltahub.registry.retention.drop import drop

MAX_KEPT = 1_000_000
MAX_AGE_S = 100 * 365 * 86400


@dataclass(frozen=True)
class Rule:
    """What is kept of each branch: its last commits, every k-th, those that are young, those with
    a tag, and always its head.

    keep_last: number of commits. keep_every: each commit whose number, counted from the branch's
    first, is a multiple of it, or, of a step of a run, the number of the step; None for
    none. older_than_s: younger commits are kept; None: age does not count.
    """

    keep_last: int = 1
    keep_every: int | None = None
    older_than_s: int | None = None

    def check(self) -> None:
        """Raise InvalidRequest for numbers that make no sense."""
        for name, value in (("keep_last", self.keep_last), ("keep_every", self.keep_every)):
            if value is not None and not 1 <= value <= MAX_KEPT:
                raise InvalidRequest(f"{name} is 1 to {MAX_KEPT}, not {value}")
        if self.older_than_s is not None and not 0 <= self.older_than_s <= MAX_AGE_S:
            raise InvalidRequest(f"older_than_s is 0 to {MAX_AGE_S}, not {self.older_than_s}")


@dataclass(frozen=True)
class Pruned:
    """What was dropped, or would be. size_bytes: of files that no kept revision lists, as pushed.

    kept: revisions that stay. commits: of the dropped ones, the oldest first. stored_bytes: what
    the repository stores less without them; None if nobody asked.
    """

    commits: list[str]
    kept: int
    size_bytes: int
    stored_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Commit:
    id: int
    commit: str
    parent: str | None
    numbers: Sequence[int]  # of the steps that it is, else its number in its branch
    created_at: datetime


def prune(
    reg: Registry, caller: Caller | None, name: str, rule: Rule, *, dry_run: bool = False
) -> Pruned:
    """Drop the revisions of all branches that the rule does not keep.

    A kept commit whose parent is dropped gets the nearest kept ancestor as its parent.
    """
    rule.check()
    with reg.db.write() as session:
        row_id = load_repository(session, caller, name, "write").id
        measure(session, row_id)
        before = usage_of_repository(session, row_id).stored_bytes
        # Only what is left tells what it stores, so a dry run prunes, and takes it back.
        with session.begin_nested() as tried:
            pruned = prune_in(session, caller, session.get_one(Repository, row_id), rule)
            after = usage_of_repository(session, row_id).stored_bytes
            if dry_run:
                tried.rollback()
    return replace(pruned, stored_bytes=max(0, before - after))


def prune_in(
    session: WriteSession, caller: Caller | None, repository: Repository, rule: Rule
) -> Pruned:
    """Do it in the caller's transaction. caller: None for a rule of retention."""
    session.refresh(repository, with_for_update=True)
    pruned, commits, leaving = _pruned(session, repository, rule)
    if not leaving:
        return pruned
    by_commit = {each.commit: each for each in commits}
    heirs: dict[int, int] = {}
    for each in commits:
        if each.id in leaving:
            continue
        parent = each.parent
        while parent is not None and (row := by_commit.get(parent)) and row.id in leaving:
            heirs.setdefault(row.id, each.id)
            parent = row.parent
        if parent != each.parent:
            session.execute(
                update(Revision).where(Revision.id == each.id).values(parent_commit=parent)
            )
    drop(session, caller, sorted(leaving), "pruned", heirs)
    name = full_name(session, repository)
    audit.append(session, caller, "revision.prune", name, {"revisions": len(leaving)})
    return pruned


def count_due(session: ReadSession, repository: Repository, rule: Rule) -> int:
    """How many revisions the rule does not keep."""
    return len(_leaving(session, repository, rule)[1])


def _pruned(
    session: ReadSession, repository: Repository, rule: Rule
) -> tuple[Pruned, list[_Commit], set[int]]:
    """(what is dropped, all commits of the repository, ids of those to drop)."""
    commits, leaving = _leaving(session, repository, rule)
    size = _only_there(session, repository, leaving)
    dropped = [each.commit for each in commits if each.id in leaving]
    return Pruned(dropped, len(commits) - len(leaving), size), commits, leaving


def _leaving(
    session: ReadSession, repository: Repository, rule: Rule
) -> tuple[list[_Commit], set[int]]:
    """(all commits of the repository, ids of those to drop)."""
    rows = session.execute(
        select(
            Revision.id,
            Revision.commit,
            Revision.parent_commit,
            Revision.number,
            Revision.created_at,
        )
        .where(Revision.repository_id == repository.id)
        .order_by(Revision.id)
    )
    steps = numbers_of(session, repository)
    commits = [
        _Commit(row_id, commit, parent, steps.get(row_id, (number,)), created_at)
        for row_id, commit, parent, number, created_at in rows
    ]
    refs = session.execute(
        select(Ref.kind, Ref.revision_id).where(Ref.repository_id == repository.id)
    ).all()
    kept = {revision for kind, revision in refs if kind in KINDS}
    by_commit = {each.commit: each for each in commits}
    by_id = {each.id: each for each in commits}
    heads = {revision for kind, revision in refs if kind == "branch"}
    for head in heads:
        kept.update(_kept_of(_chain(by_id[head], by_commit), rule))
    # What only a tag reaches is no branch's history, so no rule counts it.
    on_branches = {each.id for head in heads for each in _chain(by_id[head], by_commit)}
    return commits, on_branches - kept


def _chain(head: _Commit, by_commit: dict[str, _Commit]) -> Iterable[_Commit]:
    """The head, its parent and so on."""
    each: _Commit | None = head
    while each is not None:
        yield each
        each = None if each.parent is None else by_commit.get(each.parent)


def _kept_of(chain: Iterable[_Commit], rule: Rule) -> Iterable[int]:
    young = None
    if rule.older_than_s is not None:
        young = utc_now() - timedelta(seconds=rule.older_than_s)
    for position, each in enumerate(chain):
        is_last = position < rule.keep_last
        is_mark = rule.keep_every is not None and any(
            number % rule.keep_every == 0 for number in each.numbers
        )
        if is_last or is_mark or (young is not None and each.created_at >= young):
            yield each.id


def _only_there(session: ReadSession, repository: Repository, leaving: set[int]) -> int:
    """Bytes of the files that only these revisions of the repository list."""
    own = select(Revision.id, Revision.tree_id).where(Revision.repository_id == repository.id)
    trees: tuple[set[int], set[int]] = set(), set()
    for row_id, tree_id in session.execute(own):
        if tree_id is not None:
            trees[row_id in leaving].add(tree_id)
    stay, go = (leaves_below(session, tops) for tops in trees)
    files: set[int] = set()
    for leaf_ids in batches(sorted(go - stay)):
        files.update(
            session.scalars(select(TreeEntry.file_id).where(TreeEntry.node_id.in_(leaf_ids)))
        )
    size = 0
    for ids in batches(sorted(files)):
        listed = session.execute(
            select(TreeEntry.file_id, TreeEntry.node_id).where(TreeEntry.file_id.in_(ids))
        )
        kept = {file_id for file_id, leaf_id in listed if leaf_id in stay}
        gone = [file_id for file_id in ids if file_id not in kept]
        size += session.scalar(select(total(File.size)).where(File.id.in_(gone))) or 0
    return size

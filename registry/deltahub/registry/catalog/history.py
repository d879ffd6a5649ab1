"""The ancestors of a revision, and the commits that last changed its paths."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from deltahub.registry.catalog.trees.sums import Change
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Revision, User
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.jobs import Job


@dataclass(frozen=True)
class CommitInfo:
    """A revision as a log shows it. author: None if the user was deleted."""

    id: int
    commit: str
    message: str
    author: str | None
    created_at: datetime

    @property
    def title(self) -> str:
        """The message's first line."""
        return self.message.partition("\n")[0]

    @property
    def body(self) -> str:
        """The message after the first line."""
        return self.message.partition("\n")[2].strip("\n")


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One revision of a chain of parents."""

    id: int
    commit: str
    number: int


def author_name(session: ReadSession, revision: Revision) -> str | None:
    """The name of the user who made the revision; None if the user was deleted."""
    author = None if revision.author_id is None else session.get(User, revision.author_id)
    return None if author is None else author.name


def ancestors(session: ReadSession, revision: Revision, first: int = 0) -> list[Ancestor]:
    """The revision, its parent and so on, until an ancestor is not stored here.

    first: none with a smaller number, except the revision itself.
    """
    # One query for all revisions: a repository has thousands of them, not millions. Their messages
    # may have 64 KiB each, so they are not read here.
    query = select(Revision.commit, Revision.id, Revision.parent_commit, Revision.number).where(
        Revision.repository_id == revision.repository_id,
        Revision.id <= revision.id,
        (Revision.number >= first) | (Revision.id == revision.id),
    )
    known = {row.commit: row for row in session.execute(query)}
    found: list[Ancestor] = []
    commit: str | None = revision.commit
    while commit is not None and commit in known:
        row = known.pop(commit)
        found.append(Ancestor(row.id, commit, row.number))
        commit = row.parent_commit
    return found


def log(
    session: ReadSession, chain: Sequence[Ancestor], max_message_bytes: int
) -> list[CommitInfo]:
    """The commits of a part of a chain, in its order.

    It ends before the commit with which the messages exceed max_message_bytes in all, but has at
    least one.
    """
    sizes: dict[int, int] = {}
    for batch in batches(one.id for one in chain):
        size = func.length(Revision.message)
        sizes.update(session.execute(select(Revision.id, size).where(Revision.id.in_(batch))).all())
    taken: list[int] = []
    n_bytes = 0
    for one in chain:
        n_bytes += 4 * sizes[one.id]  # a letter has at most 4 bytes
        if taken and n_bytes > max_message_bytes:
            break
        taken.append(one.id)
    found = _commits(session, taken)
    return [found[row_id] for row_id in taken]


def ingest_states(session: ReadSession, revisions: Iterable[int]) -> dict[int, str]:
    """Revision -> the state of its ingest job, if it had one."""
    found: dict[int, str] = {}
    for batch in batches(revisions):
        query = select(Revision.id, Job.state).join(Job, Job.id == Revision.ingest_job_id)
        found.update(session.execute(query.where(Revision.id.in_(batch))).all())
    return found


def last_changes(
    session: ReadSession, revision: Revision, changes: Mapping[str, Change]
) -> dict[str, CommitInfo]:
    """Name -> the commit of its newest change, among the revision and its ancestors.

    A commit that was dropped, or rewritten, stands no more: the first that is left after it does.
    """
    if not changes:
        return {}
    first = min(change.number for change in changes.values())
    chain = ancestors(session, revision, first)[::-1]
    by_commit = {each.commit: each.id for each in chain}
    found: dict[str, int] = {}
    for name, change in changes.items():
        row_id = by_commit.get(change.commit.hex())
        if row_id is None:
            index = bisect_left(chain, change.number, key=lambda each: each.number)
            row_id = chain[min(index, len(chain) - 1)].id
        found[name] = row_id
    commits = _commits(session, set(found.values()))
    return {name: commits[row_id] for name, row_id in found.items()}


def commits_at(
    session: ReadSession, repository_id: int, commits: Iterable[str]
) -> dict[str, CommitInfo]:
    """Commit id -> the commit, for those that the repository has."""
    ids: list[int] = []
    for batch in batches(commits):
        query = select(Revision.id).where(Revision.repository_id == repository_id)
        ids += session.scalars(query.where(Revision.commit.in_(batch)))
    return {each.commit: each for each in _commits(session, ids).values()}


def _commits(session: ReadSession, ids: Iterable[int]) -> dict[int, CommitInfo]:
    found: dict[int, CommitInfo] = {}
    for batch in batches(ids):
        query = (
            select(Revision.id, Revision.commit, Revision.message, User.name, Revision.created_at)
            .outerjoin(User, User.id == Revision.author_id)
            .where(Revision.id.in_(batch))
        )
        found.update((row[0], CommitInfo(*row)) for row in session.execute(query))
    return found

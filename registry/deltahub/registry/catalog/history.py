"""The ancestors of a revision, and the commits that last changed its paths."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from deltahub.registry import cancellation
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Entry, Revision, User
from deltahub.registry.db.session import ReadSession


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


def author_name(session: ReadSession, revision: Revision) -> str | None:
    """The name of the user who made the revision; None if the user was deleted."""
    author = None if revision.author_id is None else session.get(User, revision.author_id)
    return None if author is None else author.name


def ancestors(session: ReadSession, revision: Revision) -> list[Ancestor]:
    """The revision, its parent and so on, until an ancestor is not stored here."""
    # One query for all revisions: a repository has thousands of them, not millions. Their messages
    # may have 64 KiB each, so they are not read here.
    query = select(Revision.commit, Revision.id, Revision.parent_commit).where(
        Revision.repository_id == revision.repository_id, Revision.id <= revision.id
    )
    known = {commit: (row_id, parent) for commit, row_id, parent in session.execute(query)}
    found: list[Ancestor] = []
    commit: str | None = revision.commit
    while commit is not None and commit in known:
        row_id, parent = known.pop(commit)
        found.append(Ancestor(row_id, commit))
        commit = parent
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


def last_changes(
    session: ReadSession,
    revision: Revision,
    items: Mapping[str, Collection[str]],
    max_entries: int,
) -> dict[str, CommitInfo]:
    """Item -> the newest commit, from this revision back, that changed one of the item's paths.

    items: name -> paths of the revision. At most max_entries entries of this and older revisions
    are compared. What this leaves open is left out, the items with the most paths first.
    """
    found: dict[str, int] = {}
    left = dict(items)
    largest_last = sorted(left, key=lambda name: len(left[name]))
    current: dict[str, int] = {}
    newer: int | None = None
    n_entries = 0
    for ancestor in ancestors(session, revision):
        cancellation.check()
        n_paths = sum(map(len, left.values()))
        while left and n_entries + n_paths > max_entries:
            n_paths -= len(left.pop(largest_last.pop(), ()))
        if not left:
            break
        n_entries += n_paths
        paths = set().union(*left.values())
        files = _files_at(session, ancestor.id, paths)
        if newer is None:
            current = files
        else:
            changed = {path for path in paths if files.get(path) != current.get(path)}
            for name in [name for name, below in left.items() if not changed.isdisjoint(below)]:
                found[name] = newer
                del left[name]
        newer = ancestor.id
    if newer is not None:
        found.update(dict.fromkeys(left, newer))  # they have been there from the beginning
    commits = _commits(session, set(found.values()))
    return {name: commits[row_id] for name, row_id in found.items()}


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


def _files_at(session: ReadSession, revision_id: int, paths: Collection[str]) -> dict[str, int]:
    files: dict[str, int] = {}
    for batch in batches(paths):
        query = select(Entry.path, Entry.file_id).where(
            Entry.revision_id == revision_id, Entry.path.in_(batch)
        )
        files.update((path, file_id) for path, file_id in session.execute(query))
    return files

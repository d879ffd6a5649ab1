"""The ancestors of a revision, and the commits that last changed its paths."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

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


def author_name(session: ReadSession, revision: Revision) -> str | None:
    """The name of the user who made the revision; None if the user was deleted."""
    author = None if revision.author_id is None else session.get(User, revision.author_id)
    return None if author is None else author.name


def log(session: ReadSession, revision: Revision) -> Iterator[CommitInfo]:
    """The revision, its parent and so on, until an ancestor is not stored here."""
    query = (
        select(
            Revision.id,
            Revision.commit,
            Revision.message,
            User.name,
            Revision.created_at,
            Revision.parent_commit,
        )
        .outerjoin(User, User.id == Revision.author_id)
        .where(Revision.repository_id == revision.repository_id, Revision.id <= revision.id)
    )
    # One query for all revisions: a repository has thousands of them, not millions.
    known = {row[1]: (CommitInfo(*row[:5]), row[5]) for row in session.execute(query)}
    commit: str | None = revision.commit
    while commit is not None and commit in known:
        shown, commit = known.pop(commit)
        yield shown


def last_changes(
    session: ReadSession, revision: Revision, paths: Collection[str]
) -> dict[str, CommitInfo]:
    """Path -> the newest commit, from this revision back, that changed the file at the path."""
    found: dict[str, CommitInfo] = {}
    current: dict[str, int] = {}
    newer: CommitInfo | None = None
    left = set(paths)
    for ancestor in log(session, revision):
        files = _files_at(session, ancestor.id, left)
        if newer is None:
            current = files
        for path in [path for path in left if files.get(path) != current.get(path)]:
            assert newer is not None, "the first ancestor is the revision itself"
            found[path] = newer
            left.discard(path)
        if not left:
            return found
        newer = ancestor
    if newer is not None:
        found.update(dict.fromkeys(left, newer))
    return found


def _files_at(session: ReadSession, revision_id: int, paths: Collection[str]) -> dict[str, int]:
    files: dict[str, int] = {}
    for batch in batches(paths):
        query = select(Entry.path, Entry.file_id).where(
            Entry.revision_id == revision_id, Entry.path.in_(batch)
        )
        files.update((path, file_id) for path, file_id in session.execute(query))
    return files

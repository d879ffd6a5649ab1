"""Lists of objects in order of their keys, by code point, a page at a time.

A bucket is listed with the models at main. Files of another revision are listed below a prefix that
names it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from sqlalchemy import select

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories
from deltahub.registry.access.repositories import DEFAULT_BRANCH
from deltahub.registry.catalog.history import commits_at
from deltahub.registry.catalog.objects.keys import Folder, after_all, find_bucket, find_folder
from deltahub.registry.catalog.trees.read import Tree, below, just_after
from deltahub.registry.catalog.trees.sums import Change, TreeFile
from deltahub.registry.db.expressions import by_code_point
from deltahub.registry.db.models import Namespace, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import InvalidName, NotFound

SLASH: Final = "/"
# Models whose trees one page reads. A page that would need more ends early, with a next one.
_MOST_FOLDERS: Final = 50


@dataclass(frozen=True)
class Asked:
    """Which keys somebody wants: those that begin with `prefix`, from `first` on, `limit` of them.

    in_folders: keys with a slash after the prefix are one item up to that slash.
    """

    prefix: str = ""
    first: str = ""
    limit: int = 1000
    in_folders: bool = False


@dataclass(frozen=True)
class ObjectInfo:
    """A file of a list. changed_at: when its newest commit was made."""

    key: str
    size: int
    etag: str
    changed_at: datetime


@dataclass
class ObjectPage:
    """Objects and folders, each in order. next_first: Asked.first of the next page, None after the
    last.
    """

    objects: list[ObjectInfo] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    next_first: str | None = None

    @property
    def n_items(self) -> int:
        return len(self.objects) + len(self.folders)


def list_objects(
    session: ReadSession, caller: Caller | None, bucket: str, asked: Asked
) -> ObjectPage:
    """A page of the objects that the caller may read; BucketNotFound."""
    namespace = find_bucket(session, caller, bucket)
    page = ObjectPage()
    # No key has one, and a database cannot even be asked for a text with it.
    if "\0" in asked.prefix:
        return page
    asked = replace(asked, first=asked.first.replace("\0", "\x01"))
    n_read = 0
    for folder in _folders(session, caller, namespace, asked):
        cancellation.check()
        if asked.first > folder.prefix and not asked.first.startswith(folder.prefix):
            continue  # the page begins after the folder
        if page.n_items >= asked.limit or n_read >= _MOST_FOLDERS:
            page.next_first = max(folder.prefix, asked.first)
            return page
        if asked.in_folders and len(asked.prefix) < len(folder.prefix):
            if _has_files_from(session, folder, asked.first):
                page.folders.append(folder.prefix)
            continue
        n_read += 1
        _add_files(session, folder, asked, page)
        if page.next_first is not None:
            return page
    return page


def changed_at(session: ReadSession, revision: Revision, change: Change) -> datetime:
    """When the newest change of a file of the revision was made."""
    return _dates(session, revision, [change])[0]


def after_key(key: str) -> str:
    """Asked.first for the keys after a key."""
    return just_after(key)


def after_folder(folder: str) -> str:
    """Asked.first for the keys after a folder, which ends with a slash, and all in it."""
    return below(folder[:-1])[1]


def _folders(
    session: ReadSession, caller: Caller | None, namespace: Namespace, asked: Asked
) -> Iterator[Folder]:
    """The folders that may have keys of the list, in order."""
    if SLASH in asked.prefix or "@" in asked.prefix:
        try:
            yield find_folder(session, caller, namespace.name, asked.prefix)
        except (NotFound, InvalidName):
            return
        return
    key = by_code_point(Repository.name + SLASH)
    # A list may go on inside of a folder.
    name, slash, _ = asked.first.partition(SLASH)
    query = (
        select(Repository, Revision)
        .join(Revision, Revision.id == Repository.head_id)
        .where(
            Repository.namespace_id == namespace.id,
            readable_repositories(caller),
            key >= max(name + slash, asked.prefix),
            key < after_all(asked.prefix),
        )
        .order_by(key)
        # The first may have no key of the page, and one more than it may show says that there is
        # another page.
        .limit(asked.limit + 2 if asked.in_folders else _MOST_FOLDERS + 1)
    )
    for repository, revision in session.execute(query):
        yield Folder(f"{repository.name}{SLASH}", DEFAULT_BRANCH, repository, revision)


def _has_files_from(session: ReadSession, folder: Folder, first: str) -> bool:
    if not first.startswith(folder.prefix):
        return True  # a list of revisions would cost more than to name one without a file
    tree = Tree(session, folder.revision.tree_id)
    return next(tree.between(first[len(folder.prefix) :]), None) is not None


def _add_files(session: ReadSession, folder: Folder, asked: Asked, page: ObjectPage) -> None:
    """Add the keys of a folder to a page, until it is full."""
    start = len(folder.prefix)
    inside = asked.prefix[start:]
    at = max(inside, asked.first[start:] if asked.first.startswith(folder.prefix) else "")
    tree = Tree(session, folder.revision.tree_id)
    found: list[tuple[str, TreeFile]] = []
    while True:
        common = None
        for path, file in tree.between(at):
            if not path.startswith(inside):
                break
            if page.n_items + len(found) >= asked.limit:
                page.next_first = folder.prefix + path
                break
            cut = path.find(SLASH, len(inside)) if asked.in_folders else -1
            if cut >= 0:
                common = path[: cut + 1]
                break
            found.append((path, file))
        if common is None:
            break
        page.folders.append(folder.prefix + common)
        at = after_folder(common)
    dates = _dates(session, folder.revision, [file.changed for _, file in found])
    for (path, file), date in zip(found, dates, strict=True):
        page.objects.append(ObjectInfo(folder.prefix + path, file.size, file.etag, date))


def _dates(session: ReadSession, revision: Revision, changes: list[Change]) -> list[datetime]:
    """When each change was made; for one that was dropped since, when the revision was."""
    names = {change.commit.hex() for change in changes}
    commits = commits_at(session, revision.repository_id, names) if names else {}
    known = (commits.get(change.commit.hex()) for change in changes)
    return [revision.created_at if each is None else each.created_at for each in known]

"""A revision's tree a page at a time: files, and the folders that their paths make.

Items are ordered by key: a file's path, a folder's path with a slash at its end, by code point. So
a folder comes right before the first file in it, and a page can be found from its first key alone.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from sqlalchemy import select

from deltahub.registry.catalog.entries import etag_of
from deltahub.registry.db.expressions import by_code_point
from deltahub.registry.db.models import Entry, File, Revision
from deltahub.registry.db.session import ReadSession

# What follows a slash: in its place, behind a folder's name, it comes after all that is in there.
_NEXT: Final = chr(ord("/") + 1)
# Less than all that a path may hold.
_LEAST: Final = "\x01"
# Rows that are fetched together where there may be any number.
_ROWS: Final = 2000
# Folders that are read one by one.
_FEW: Final = 16
_PATH: Final = by_code_point(Entry.path)


def tree_page(
    session: ReadSession,
    revision: Revision,
    folder: str,
    after: str,
    size: int,
    *,
    is_recursive: bool,
) -> tuple[list[str], bool]:
    """(keys of at most `size` items below a folder, whether there are more).

    folder: "" for all of the tree. after: the key behind which the page begins, "" for the first.
    """
    below = f"{folder}/" if folder else ""
    keys = _keys(session, revision, below, after, size + 1, is_recursive)
    found = list(islice(keys, size + 1))
    return found[:size], len(found) > size


def has_folder(session: ReadSession, revision: Revision, folder: str) -> bool:
    """Whether any file is below the folder."""
    return bool(_paths(session, revision, f"{folder}/", "", 1))


def inside_of(
    session: ReadSession, revision: Revision, folders: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    """(folder, path, ETag) of each file below each of the folders that are there, in order of path.

    Of many folders, what lies between them is read too, in one query: a page shows that as well.
    """
    asked = set(folders)
    outermost = sorted(f"{folder}/" for folder in asked if asked.isdisjoint(_ancestors(folder)))
    is_few = len(outermost) <= _FEW
    spans = [(key, key) for key in outermost] if is_few else [(outermost[0], outermost[-1])]
    for first, last in spans:
        for path, etag in _files(session, revision, first, _past(last)):
            for folder in _ancestors(path):
                if folder in asked:
                    yield folder, path, etag


def _keys(
    session: ReadSession, revision: Revision, below: str, after: str, n: int, is_recursive: bool
) -> Iterator[str]:
    if not is_recursive and after.startswith(below):
        # Behind something within a folder is behind the folder: its files need not be passed by.
        first, slash, _ = after[len(below) :].partition("/")
        after = below + first + slash
    shown = after
    at = after if is_recursive and after.endswith("/") else _past(after)
    while True:
        paths = _paths(session, revision, below, at, n)
        for path in paths:
            parts = path[len(below) :].split("/")
            n_parts = len(parts) if is_recursive else 1
            for end in range(1, n_parts + 1):
                key = below + "/".join(parts[:end]) + ("/" if end < len(parts) else "")
                if key > shown:
                    yield key
                    shown = key
        if len(paths) < n:
            return
        at = max(_past(paths[-1]), "" if is_recursive else _past(shown))


def _past(key: str) -> str:
    """The least that follows the key of a file, or of a folder and all that is in it."""
    if key.endswith("/"):
        return key[:-1] + _NEXT
    return key + _LEAST if key else ""


def _ancestors(path: str) -> Iterator[str]:
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def _paths(session: ReadSession, revision: Revision, below: str, at: str, n: int) -> list[str]:
    """The first n paths below a folder's key, "" for all, from `at` on."""
    query = select(Entry.path).where(Entry.revision_id == revision.id, _PATH >= max(at, below))
    if below:
        query = query.where(_PATH < _past(below))
    return list(session.scalars(query.order_by(_PATH).limit(n)))


def _files(
    session: ReadSession, revision: Revision, first: str, end: str
) -> Iterator[tuple[str, str]]:
    """(path, ETag) of paths from `first` to before `end`, in order."""
    query = (
        select(Entry.path, Entry.mode, File.sha256, File.git_blob_id)
        .join(File, File.id == Entry.file_id)
        .where(Entry.revision_id == revision.id, _PATH >= first, _PATH < end)
        .order_by(_PATH)
        .execution_options(yield_per=_ROWS)
    )
    for path, mode, sha256, git_blob_id in session.execute(query):
        yield path, etag_of(mode, sha256, git_blob_id)

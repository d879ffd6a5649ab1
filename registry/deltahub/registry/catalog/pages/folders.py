"""A revision's tree in pages: files, and the folders in their paths.

Items are sorted by key, by code point. The key of a file is its path; the key of a folder is its
path with a slash at the end. So a folder comes right before its first file, and the key of the last
item is enough to find the next page.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sqlalchemy import select

from deltahub.registry import cancellation
from deltahub.registry.catalog.entries import etag_of
from deltahub.registry.db.expressions import by_code_point
from deltahub.registry.db.models import Entry, File, Revision
from deltahub.registry.db.session import ReadSession

# The code point after the slash: a folder's name and this sort after all paths in the folder.
_AFTER_SLASH: Final = chr(ord("/") + 1)
# A code point below all those that a path may contain.
_MIN_CHARACTER: Final = "\x01"
# Rows fetched at a time when their number has no limit.
_FETCH_ROWS: Final = 2000
# Up to this number of folders, each folder is read with its own query.
_MAX_SPANS: Final = 16
_PATH: Final = by_code_point(Entry.path)


@dataclass
class Folder:
    """What is below a folder. paths: None if they are not listed. sum: of hashes of the files."""

    paths: list[str] | None
    sum: int = 0

    @property
    def id(self) -> str:
        """40 hex digits that all paths and ETags below the folder determine."""
        return f"{self.sum % (1 << 160):040x}"


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

    folder: "" for the whole tree. after: the key of the last item before the page, "" for the first
    page.
    """
    below = f"{folder}/" if folder else ""
    keys = _keys(session, revision, below, after, size + 1, is_recursive)
    found = list(islice(keys, size + 1))
    return found[:size], len(found) > size


def has_folder(session: ReadSession, revision: Revision, folder: str) -> bool:
    """Whether any file is below the folder."""
    return bool(_paths(session, revision, f"{folder}/", "", 1))


def read_folders(
    session: ReadSession, revision: Revision, folders: Iterable[str], max_paths: int = 0
) -> dict[str, Folder]:
    """Folder -> what is below it, for those of the folders that exist.

    max_paths: most paths that are listed in all. For more than _MAX_SPANS folders, one query also
    reads the files between the folders: the page that asks mostly lists those too.
    """
    children = _nested(sorted({f"{folder}/" for folder in folders}))
    outermost = children[""]
    spans = [(key, key) for key in outermost]
    if len(outermost) > _MAX_SPANS:
        spans = [(outermost[0], outermost[-1])]
    found: dict[str, Folder] = {}
    n_paths = 0
    for first, last in spans:
        inside: list[str] = []  # keys of the folders that the file is in, the outermost first
        for path, etag in _files(session, revision, first, _successor(last)):
            while inside and not path.startswith(inside[-1]):
                _leave(inside, found)
            while key := _child_of(children[inside[-1] if inside else ""], path):
                inside.append(key)
                found[key] = Folder([] if max_paths else None)
            if not inside:
                continue
            digest = hashlib.sha1(f"{path}\0{etag}".encode(), usedforsecurity=False).digest()
            found[inside[-1]].sum += int.from_bytes(digest, "big")
            if max_paths:
                listed = [paths for key in inside if (paths := found[key].paths) is not None]
                for paths in listed:
                    paths.append(path)
                n_paths += len(listed)
                while n_paths > max_paths:  # the outermost has the most
                    largest = next(found[key] for key in inside if found[key].paths is not None)
                    n_paths -= len(largest.paths or ())
                    largest.paths = None
        while inside:
            _leave(inside, found)
    return {key[:-1]: folder for key, folder in found.items()}


def _nested(keys: Iterable[str]) -> dict[str, list[str]]:
    """Key of a folder, "" for the root -> those of the sorted keys directly below it, sorted."""
    children: dict[str, list[str]] = {"": []}
    above = [""]
    for key in keys:
        while not key.startswith(above[-1]):
            above.pop()
        children[above[-1]].append(key)
        children[key] = []
        above.append(key)
    return children


def _child_of(keys: Sequence[str], path: str) -> str | None:
    """The one of these sorted keys, none inside another, that the path is below."""
    index = bisect_right(keys, path) - 1
    return keys[index] if index >= 0 and path.startswith(keys[index]) else None


def _leave(inside: list[str], found: Mapping[str, Folder]) -> None:
    left = found[inside.pop()]
    if inside:
        found[inside[-1]].sum += left.sum


def _keys(
    session: ReadSession, revision: Revision, below: str, after: str, n: int, is_recursive: bool
) -> Iterator[str]:
    if not is_recursive and after.startswith(below):
        # A key inside a subfolder continues after the whole subfolder, which skips its files.
        first, slash, _ = after[len(below) :].partition("/")
        after = below + first + slash
    shown = after
    at = after if is_recursive and after.endswith("/") else _successor(after)
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
        at = max(_successor(paths[-1]), "" if is_recursive else _successor(shown))


def _successor(key: str) -> str:
    """The least string that sorts after a file's key, or after a folder's key and its contents."""
    if key.endswith("/"):
        return key[:-1] + _AFTER_SLASH
    return key + _MIN_CHARACTER if key else ""


def _paths(session: ReadSession, revision: Revision, below: str, at: str, n: int) -> list[str]:
    """The first n paths that start with a folder's key ("" for all) and are not below `at`."""
    query = select(Entry.path).where(Entry.revision_id == revision.id, _PATH >= max(at, below))
    if below:
        query = query.where(_PATH < _successor(below))
    return list(session.scalars(query.order_by(_PATH).limit(n)))


def _files(
    session: ReadSession, revision: Revision, first: str, end: str
) -> Iterator[tuple[str, str]]:
    """(path, ETag) of the paths from `first` to before `end`, in order."""
    query = (
        select(Entry.path, Entry.mode, File.sha256, File.git_blob_id)
        .join(File, File.id == Entry.file_id)
        .where(Entry.revision_id == revision.id, _PATH >= first, _PATH < end)
        .order_by(_PATH)
        .execution_options(yield_per=_FETCH_ROWS)
    )
    for number, (path, mode, sha256, git_blob_id) in enumerate(session.execute(query)):
        if number % _FETCH_ROWS == 0:
            cancellation.check()
        yield path, etag_of(mode, sha256, git_blob_id)

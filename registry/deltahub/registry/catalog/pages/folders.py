"""A revision's tree in pages: files, and the folders in their paths.

Items are sorted by key, by code point. The key of a file is its path; the key of a folder is its
path with a slash at the end. So a folder comes right before its first file, and the key of the last
item is enough to find the next page.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from deltahub.registry.catalog.trees.read import Tree, below, just_after
from deltahub.registry.catalog.trees.sums import Sums
from deltahub.registry.db.models import Revision
from deltahub.registry.db.session import ReadSession


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
    inside = f"{folder}/" if folder else ""
    tree = Tree(session, revision.tree_id)
    keys = _keys(tree, inside, after, size + 1, is_recursive)
    found = list(islice(keys, size + 1))
    return found[:size], len(found) > size


def has_folder(session: ReadSession, revision: Revision, folder: str) -> bool:
    """Whether any file is below the folder."""
    return bool(_paths(Tree(session, revision.tree_id), f"{folder}/", "", 1))


def read_folders(
    session: ReadSession, revision: Revision, folders: Iterable[str]
) -> dict[str, Sums]:
    """Folder -> sums over the files below it, for those of the folders that exist."""
    tree = Tree(session, revision.tree_id)
    found = {folder: tree.sums_between(*below(folder)) for folder in sorted(set(folders))}
    return {folder: sums for folder, sums in found.items() if sums.n_files}


def _keys(tree: Tree, inside: str, after: str, n: int, is_recursive: bool) -> Iterator[str]:
    if not is_recursive and after.startswith(inside):
        # A key inside a subfolder continues after the whole subfolder, which skips its files.
        first, slash, _ = after[len(inside) :].partition("/")
        after = inside + first + slash
    shown = after
    at = after if is_recursive and after.endswith("/") else _successor(after)
    while True:
        paths = _paths(tree, inside, at, n)
        for path in paths:
            parts = path[len(inside) :].split("/")
            n_parts = len(parts) if is_recursive else 1
            for end in range(1, n_parts + 1):
                key = inside + "/".join(parts[:end]) + ("/" if end < len(parts) else "")
                if key > shown:
                    yield key
                    shown = key
        if len(paths) < n:
            return
        at = max(_successor(paths[-1]), "" if is_recursive else _successor(shown))


def _successor(key: str) -> str:
    """The least string that sorts after a file's key, or after a folder's key and its contents."""
    if key.endswith("/"):
        return below(key[:-1])[1]
    return just_after(key) if key else ""


def _paths(tree: Tree, inside: str, at: str, n: int) -> list[str]:
    """The first n paths that start with a folder's key ("" for all) and are not below `at`."""
    end = _successor(inside) if inside else None
    return [path for path, _ in islice(tree.between(max(at, inside), end), n)]

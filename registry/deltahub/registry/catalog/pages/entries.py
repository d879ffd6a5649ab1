"""The entries of a revision, page by page, in memory that does not grow with their number.

Each page is read in a transaction of its own, so that nothing stays open while it is sent. That is
one list nevertheless, because the entries of a commit never change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Select, select

from deltahub.registry import cancellation
from deltahub.registry.catalog.trees.read import MAX_LEAVES, Link, Tree, just_after
from deltahub.registry.catalog.trees.sums import etag_of
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import TreeEntry
from deltahub.registry.errors import RevisionNotFound
from deltahub.registry.packs.block_cache import ByteCache
from deltahub.registry.registry import Registry

# (repository, leaf, sum of its ids) -> its paths as text. Limit: 32 MiB, a million paths or less.
_TEXTS: Final[ByteCache[tuple[int, int, int], bytes]] = ByteCache(32 << 20)
_KEY_BYTES: Final = 200
# A revision -> the paths of a small tree as text, for lists of many models.
_WHOLE: Final[ByteCache[tuple[int, str, datetime], bytes]] = ByteCache(16 << 20)


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """One path of a revision, and the file there."""

    path: str
    mode: str  # regular | lfs
    sha256: str
    size: int
    git_blob_id: str | None
    state: str

    @property
    def etag(self) -> str:
        """The git blob id of a regular file, the SHA-256 of an LFS file; never changes."""
        return etag_of(self.mode, self.sha256, self.git_blob_id)


def entry_pages(reg: Registry, revision: Revision) -> Iterator[list[ListedEntry]]:
    """All entries in order of path (by Unicode code point), some of them at a time.

    RevisionNotFound if the revision is deleted before the end.
    """
    query = select(
        TreeEntry.path, TreeEntry.mode, File.sha256, File.size, File.git_blob_id, File.state
    ).join(File, File.id == TreeEntry.file_id)
    for rows in _pages(reg, revision, query):
        yield [ListedEntry(*row) for row in rows]


def path_texts(
    reg: Registry, revision: Revision, text_of: Callable[[Sequence[str]], bytes]
) -> Iterator[bytes]:
    """All paths in the same order, as text; some thousands of paths at a time.

    text_of: the text of some paths; those of all parts are joined by commas. It is remembered for
    each leaf, so it must always be the same function. RevisionNotFound as for entry_pages.
    """
    whole_key = revision.id, revision.commit, revision.created_at
    whole = _WHOLE.get(whole_key)
    if whole is not None:
        yield whole
        return
    groups: list[Link] | None = None
    is_one = False
    while groups is None or groups:
        cancellation.check()
        with reg.db.read() as session:
            tree = Tree(session, _still_there(session, revision).tree_id)
            if groups is None:
                groups = tree.links(tree.id)
                is_one = len(groups) == 1
            leaves = tree.links(groups[0].child_id) if groups else []
            texts = {leaf.child_id: _TEXTS.get(_key(revision, leaf)) for leaf in leaves}
            for leaf_ids in batches((i for i, text in texts.items() if text is None), MAX_LEAVES):
                texts |= _texts_of(session, leaf_ids, text_of)
        for leaf in leaves:
            text = texts[leaf.child_id] or b""
            _TEXTS.put(_key(revision, leaf), text, len(text) + _KEY_BYTES)
        joined = b",".join(text for text in texts.values() if text)
        if is_one:
            _WHOLE.put(whole_key, joined, len(joined) + _KEY_BYTES)
        yield joined
        groups = groups[1:]


def _texts_of(
    session: ReadSession, leaf_ids: Sequence[int], text_of: Callable[[Sequence[str]], bytes]
) -> dict[int, bytes]:
    paths: dict[int, list[str]] = {leaf_id: [] for leaf_id in leaf_ids}
    query = select(TreeEntry.node_id, TreeEntry.path).where(TreeEntry.node_id.in_(leaf_ids))
    for leaf_id, path in session.execute(query.order_by(TreeEntry.node_id, TreeEntry.path)):
        paths[leaf_id].append(path)
    return {leaf_id: text_of(inside) for leaf_id, inside in paths.items()}


def _key(revision: Revision, leaf: Link) -> tuple[int, int, int]:
    # Ids of nodes are given again; the sum says what the leaf has.
    return revision.repository_id, leaf.child_id, leaf.sums.id


def _still_there(session: ReadSession, revision: Revision) -> Revision:
    # The nodes of a deleted revision are gone, and its id may be given again.
    now = session.get(Revision, revision.id)
    if now is None or now.commit != revision.commit:
        raise RevisionNotFound(f"{revision.commit} has been deleted")
    return now


def _pages(
    reg: Registry, revision: Revision, query: Select[*tuple[Any, ...]]
) -> Iterator[list[Any]]:
    after = ""
    while True:
        cancellation.check()
        with reg.db.read() as session:
            tree = Tree(session, _still_there(session, revision).tree_id)
            leaf_ids = next(tree.leaf_ids(after, n_at_first=MAX_LEAVES), [])
            in_leaves = TreeEntry.node_id.in_(leaf_ids), TreeEntry.path >= after
            rows = list(session.execute(query.where(*in_leaves).order_by(TreeEntry.path)))
        yield rows
        if not rows:
            return
        after = just_after(rows[-1][0])

"""Reads parts of a tree: the files at given paths, between two paths, and sums over them."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from sqlalchemy import BindParameter, Integer, ScalarSelect, String, bindparam, select
from sqlalchemy.orm import aliased

from deltahub.registry import cancellation
from deltahub.registry.catalog.trees.sums import Change, Sums, TreeFile, sums_of
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import TreeEntry, TreeLink

Leaf = list[tuple[str, TreeFile]]
# Leaves that one statement reads, and that a reader keeps.
MAX_LEAVES: Final = 16
_KEPT_LEAVES: Final = 64
# The code point after the slash: a folder's name and this sort after all paths in the folder.
_AFTER_SLASH: Final = chr(ord("/") + 1)


@dataclass(frozen=True, slots=True)
class Link:
    """A child of a node. bound: no path below it is less."""

    bound: str
    child_id: int
    sums: Sums


class Tree:
    """Reads one tree in a session, and keeps what it has read of the upper nodes."""

    def __init__(self, session: ReadSession, tree_id: int | None) -> None:
        """tree_id: Revision.tree_id; None reads as a tree without files."""
        self._session = session
        self.id = tree_id
        self._links: dict[int, list[Link]] = {}
        self._leaves: OrderedDict[int, Leaf] = OrderedDict()

    @property
    def sums(self) -> Sums:
        """The sums over all files."""
        return reduce(Sums.__add__, (link.sums for link in self.links(self.id)), Sums())

    def at(self, paths: Iterable[str]) -> dict[str, TreeFile]:
        """Path -> file, for the given paths that have one."""
        found: dict[str, TreeFile] = {}
        inside = self.leaves_of(paths)
        for leaf_ids in batches(inside, MAX_LEAVES):
            for leaf_id in self._load_leaves(leaf_ids):
                files = dict(self._leaves[leaf_id])
                found |= {path: files[path] for path in inside[leaf_id] if path in files}
        return found

    def between(self, first: str, end: str | None = None) -> Iterator[tuple[str, TreeFile]]:
        """The files from the path `first` to before `end` (None: to the last), in order of path."""
        for leaf_ids in self.leaf_ids(first, end):
            for leaf_id in self._load_leaves(leaf_ids):
                files = self._leaves[leaf_id]
                for index in range(bisect_left(files, first, key=_path_of), len(files)):
                    if end is not None and files[index][0] >= end:
                        return
                    yield files[index]

    def sums_between(self, first: str, end: str) -> Sums:
        """The sums over the files from `first` to before `end`."""
        if self.id is None:
            return Sums()
        return self._sums(self.id, 2, "", None, first, end)

    def leaves_of(self, paths: Iterable[str]) -> dict[int, list[str]]:
        """Leaf -> those of the paths that it has if the tree has them."""
        wanted = {self.id: sorted(set(paths))} if self.id is not None else {}
        for _ in range(2):
            self._load_links(wanted)
            below: dict[int, list[str]] = {}
            for node_id, inside in wanted.items():
                links = self._links[node_id]
                for index, part in enumerate(parts(links, inside)):
                    if part:
                        below[links[index].child_id] = part
            wanted = below
        return wanted

    def leaf_ids(
        self, first: str = "", end: str | None = None, marks: int = 0, n_at_first: int = 1
    ) -> Iterator[list[int]]:
        """The leaves with paths from `first` to before `end`, in order, some at a time.

        marks: only leaves that have all of these bits. n_at_first: leaves of the first list. Each
        has more than the one before, up to MAX_LEAVES: some callers want few, and some want all.
        """
        found: list[int] = []
        n_wanted = n_at_first
        for group in _overlapping(self.links(self.id), first, end):
            cancellation.check()
            if group.sums.marks & marks != marks:
                continue
            for leaf in _overlapping(self.links(group.child_id), first, end):
                if leaf.sums.marks & marks == marks:
                    found.append(leaf.child_id)
                if len(found) == n_wanted:
                    yield found
                    found = []
                    n_wanted = min(2 * n_wanted, MAX_LEAVES)
        if found:
            yield found

    def links(self, node_id: int | None) -> list[Link]:
        """The children of a node, in order."""
        if node_id is None:
            return []
        self._load_links([node_id])
        return self._links[node_id]

    def leaf(self, leaf_id: int) -> Leaf:
        """The files of a leaf, in order of path."""
        self._load_leaves([leaf_id])
        return self._leaves[leaf_id]

    def read_leaves(self, leaf_ids: Collection[int]) -> dict[int, Leaf]:
        """The files of leaves, each in order of path. They are not kept."""
        found: dict[int, Leaf] = {leaf_id: [] for leaf_id in leaf_ids}
        for batch in batches(leaf_ids, MAX_LEAVES):
            cancellation.check()
            rows = self._session.execute(_FILES, {"nodes": batch})
            for node_id, path, number, commit, *columns in rows:
                file_id, mode, sha256, size, blob, state = columns
                changed = Change(number, commit)
                file = TreeFile(file_id, mode, sha256, size, blob, state, changed)
                found[node_id].append((path, file))
        return found

    def _load_links(self, node_ids: Iterable[int]) -> None:
        missing = [node_id for node_id in node_ids if node_id not in self._links]
        for batch in batches(missing):
            self._links |= {node_id: [] for node_id in batch}
            for row in self._session.execute(_LINKS, {"nodes": batch}):
                changed = Change(row.changed_number, row.changed_commit)
                total = int.from_bytes(row.id_sum, "big")
                sums = Sums(row.n_files, row.n_bytes, total, row.marks, changed)
                self._links[row.parent_id].append(Link(row.bound, row.child_id, sums))

    def _load_leaves(self, leaf_ids: Sequence[int]) -> Sequence[int]:
        missing = [leaf_id for leaf_id in leaf_ids if leaf_id not in self._leaves]
        self._leaves |= self.read_leaves(missing)
        for leaf_id in leaf_ids:
            self._leaves.move_to_end(leaf_id)
        while len(self._leaves) > max(_KEPT_LEAVES, len(leaf_ids)):
            self._leaves.popitem(last=False)
        return leaf_ids

    def _sums(
        self, node_id: int, level: int, low: str, high: str | None, first: str, end: str
    ) -> Sums:
        """The sums over the part of a node, whose paths lie from `low` to before `high`."""
        if level == 0:
            return sums_of(item for item in self.leaf(node_id) if first <= item[0] < end)
        links = self.links(node_id)
        found = Sums()
        for index, link in enumerate(links):
            below = link.bound or low
            above = links[index + 1].bound if index + 1 < len(links) else high
            if below >= end or (above is not None and above <= first):
                continue
            is_inside = first <= below and above is not None and above <= end
            if is_inside:
                found += link.sums
            else:
                found += self._sums(link.child_id, level - 1, below, above, first, end)
        return found


def below(folder: str) -> tuple[str, str]:
    """The first path below a folder that is possible, and the first after it."""
    return f"{folder}/", folder + _AFTER_SLASH


def just_after(path: str) -> str:
    """The least string that sorts after a path: no path has a code point below U+0001."""
    return path + "\x01"


def parts(links: Sequence[Link], paths: Sequence[str]) -> list[list[str]]:
    """The sorted paths, cut into those of each link. The first link's bound counts as the least."""
    bounds = [link.bound for link in links]
    found: list[list[str]] = [[] for _ in links]
    for path in paths if links else ():
        found[max(bisect_right(bounds, path) - 1, 0)].append(path)
    return found


def _path_of(item: tuple[str, TreeFile]) -> str:
    return item[0]


def _overlapping(links: Sequence[Link], first: str, end: str | None) -> Iterator[Link]:
    for index, link in enumerate(links):
        if end is not None and index and link.bound >= end:
            return
        if index + 1 == len(links) or links[index + 1].bound > first:
            yield link


# Statements are made once: to make one takes longer than to run it. They are of tables rather than
# of mapped classes for the same reason.
_ENTRY: Final = TreeEntry.__table__.c
_LINK: Final = TreeLink.__table__.c
_FILE: Final = File.__table__.c
_LINKS: Final = (
    select(*_LINK)
    .where(_LINK.parent_id.in_(bindparam("nodes", expanding=True)))
    .order_by(_LINK.parent_id, _LINK.bound)
)
_FILES: Final = (
    select(
        _ENTRY.node_id, _ENTRY.path, _ENTRY.changed_number, _ENTRY.changed_commit,
        _ENTRY.file_id, _ENTRY.mode, _FILE.sha256, _FILE.size, _FILE.git_blob_id, _FILE.state,
    )
    .join_from(TreeEntry.__table__, File.__table__, _FILE.id == _ENTRY.file_id)
    .where(_ENTRY.node_id.in_(bindparam("nodes", expanding=True)))
    .order_by(_ENTRY.node_id, _ENTRY.path)
)  # fmt: skip


def _leaf_of(tree: BindParameter[int], path: BindParameter[str]) -> ScalarSelect[int]:
    node: ScalarSelect[int] | BindParameter[int] = tree
    for _ in range(2):
        link = aliased(TreeLink)
        node = (
            select(link.child_id)
            .where(link.parent_id == node, link.bound <= path)
            .order_by(link.bound.desc())
            .limit(1)
            .scalar_subquery()
        )
    assert isinstance(node, ScalarSelect)
    return node


# SQL for the leaf of the tree :tree that has :path if any has it.
LEAF_OF_PATH: Final = _leaf_of(bindparam("tree", type_=Integer), bindparam("path", type_=String))

"""What differs between two trees, in order of path, read no further than the caller goes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from deltahub.registry.catalog.trees.read import MAX_LEAVES, Link, Tree
from deltahub.registry.catalog.trees.sums import TreeFile
from deltahub.registry.db.batches import batches


@dataclass(frozen=True, slots=True)
class ChangedPath:
    """A path whose file differs. before, after: None where the tree has no such path."""

    path: str
    before: TreeFile | None
    after: TreeFile | None


_END: Final = "\U0010ffff" * 2  # sorts after every path


def changed_paths(old: Tree, new: Tree, after: str = "") -> Iterator[ChangedPath]:
    """The paths after `after` whose files differ. Nodes that both trees have are not read."""
    olds, news = _apart(old, new, after), _apart(new, old, after)
    end: tuple[str, TreeFile | None] = (_END, None)
    left: tuple[str, TreeFile | None] = next(olds, end)
    right: tuple[str, TreeFile | None] = next(news, end)
    while left[0] != _END or right[0] != _END:
        path = min(left[0], right[0])
        before = left[1] if left[0] == path else None
        now = right[1] if right[0] == path else None
        if before is None or now is None or not _is_same(before, now):
            yield ChangedPath(path, before, now)
        if left[0] == path:
            left = next(olds, end)
        if right[0] == path:
            right = next(news, end)


def _is_same(one: TreeFile, other: TreeFile) -> bool:
    return (one.sha256, one.mode) == (other.sha256, other.mode)


def _apart(tree: Tree, other: Tree, after: str) -> Iterator[tuple[str, TreeFile]]:
    """The files after a path in leaves that the other tree does not have."""
    groups = {link.child_id for link in other.links(other.id)}
    own = [link for link in tree.links(tree.id) if link.child_id not in groups]
    known = {link.child_id for link in tree.links(tree.id)}
    theirs = {
        leaf.child_id
        for group in other.links(other.id)
        if group.child_id not in known
        for leaf in other.links(group.child_id)
    }
    for leaf_ids in batches(_leaves(tree, own, theirs, after), MAX_LEAVES):
        leaves = tree.read_leaves(leaf_ids)
        for leaf_id in leaf_ids:
            yield from (item for item in leaves[leaf_id] if item[0] > after)


def _leaves(tree: Tree, groups: list[Link], theirs: set[int], after: str) -> Iterator[int]:
    for number, group in enumerate(groups):
        if number + 1 < len(groups) and groups[number + 1].bound <= after:
            continue
        for leaf in tree.links(group.child_id):
            if leaf.child_id not in theirs:
                yield leaf.child_id

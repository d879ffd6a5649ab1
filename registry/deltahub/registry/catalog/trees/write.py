"""Writes trees: a new one holds the nodes that a commit changes, and shares all others."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import insert, select

from deltahub.registry import cancellation
from deltahub.registry.catalog.trees.read import Link, Tree, parts
from deltahub.registry.catalog.trees.sums import Change, Sums, TreeFile, sums_of
from deltahub.registry.db.batches import batches
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.tables.trees import TreeEntry, TreeLink, TreeNode

# Entries of a leaf, and links of a group, at most. A commit of one file writes one of each anew.
MAX_ITEMS: Final = 128
_NO_NODE: Final = 0  # no row has this id, so it reads as a node without children


@dataclass
class _New:
    """A node to write: a leaf with files, or one with links. link: to it, once it is written."""

    bound: str
    files: Sequence[tuple[str, TreeFile]] = ()
    links: Sequence[Link] = ()
    link: Link | None = None


def change_tree(
    session: WriteSession,
    repository_id: int,
    tree: Tree,
    changes: Mapping[str, TreeFile | None],
    changed: Change,
) -> int | None:
    """Write a tree with these changes (None: no file at the path); its top node.

    changed: what the given files get as their newest change. Returns None for a tree without files,
    and the given tree without changes.
    """
    if not changes:
        return tree.id
    paths = sorted(changes)
    tree.leaves_of(paths)  # loads the links of all groups that change
    top = tree.links(tree.id) or [Link("", _NO_NODE, Sums())]
    inside = parts(top, paths)
    of_groups = {i: tree.links(top[i].child_id) for i, part in enumerate(inside) if part}
    leaves = {
        i: _changed_leaves(tree, links or [Link("", _NO_NODE, Sums())], inside[i], changes, changed)
        for i, links in of_groups.items()
    }
    _write(session, repository_id, [each for new in leaves.values() for each in new])
    groups = _replaced(top, {i: _links(new, top[i].bound) for i, new in leaves.items()})
    _write(session, repository_id, groups)
    links = _links(groups, "")
    if not links:
        return None
    new_top = _New("", links=links)
    _write(session, repository_id, [new_top])
    assert new_top.link is not None
    return new_top.link.child_id


def without_files(
    session: WriteSession, repository_id: int, file_ids: Collection[int]
) -> dict[int, int | None]:
    """Write all trees of a repository that have these files without them: top node -> new one.

    What is left keeps its newest changes.
    """
    reader = Tree(session, None)
    having: set[int] = set()
    for batch in batches(file_ids):
        query = (
            select(TreeEntry.node_id)
            .join(TreeNode, TreeNode.id == TreeEntry.node_id)
            .where(TreeNode.repository_id == repository_id, TreeEntry.file_id.in_(batch))
        )
        having.update(session.scalars(query))
    new: dict[int, Link | None] = {}
    for leaf_ids in batches(sorted(having)):
        cancellation.check()
        left = {
            leaf_id: [(path, file) for path, file in files if file.file_id not in file_ids]
            for leaf_id, files in reader.read_leaves(leaf_ids).items()
        }
        made = {leaf_id: _New("", files=files) for leaf_id, files in left.items() if files}
        _write(session, repository_id, list(made.values()))
        new |= {leaf_id: made[leaf_id].link if leaf_id in made else None for leaf_id in leaf_ids}
    for _ in range(2):
        new = _with_children(session, repository_id, reader, new)
    return {top: None if link is None else link.child_id for top, link in new.items()}


def _with_children(
    session: WriteSession, repository_id: int, reader: Tree, new: Mapping[int, Link | None]
) -> dict[int, Link | None]:
    """Write the parents of replaced nodes anew: parent -> the new one, None if nothing is left."""
    parents: set[int] = set()
    for batch in batches(sorted(new)):
        parents.update(
            session.scalars(select(TreeLink.parent_id).where(TreeLink.child_id.in_(batch)))
        )
    made: dict[int, Link | None] = {}
    for parent in sorted(parents):
        links = []
        for link in reader.links(parent):
            child = new.get(link.child_id, link)
            if child is not None:
                links.append(replace(child, bound=link.bound))
        node = _New("", links=links)
        if links:
            _write(session, repository_id, [node])
        made[parent] = node.link
    return made


def _changed_leaves(
    tree: Tree,
    links: Sequence[Link],
    paths: Sequence[str],
    changes: Mapping[str, TreeFile | None],
    changed: Change,
) -> list["Link | _New"]:
    """The leaves of a group, some of them new."""
    inside = {i: part for i, part in enumerate(parts(links, paths)) if part}
    before = tree.read_leaves([links[i].child_id for i in inside])
    contents = {}
    for i, part in inside.items():
        files = dict(before[links[i].child_id])
        for path in part:
            file = changes[path]
            if file is None:
                files.pop(path, None)
            else:
                files[path] = replace(file, changed=changed)
        contents[i] = sorted(files.items())
    return _replaced(links, contents)


def _replaced(links: Sequence[Link], contents: Mapping[int, Sequence[Any]]) -> list["Link | _New"]:
    """Replace children, given by position, by new nodes for their new contents.

    Children side by side are filled evenly, so that few small ones are left after many deletions.
    """
    made: list[Link | _New] = []
    i = 0
    while i < len(links):
        if i not in contents:
            made.append(links[i])
            i += 1
            continue
        bound = links[i].bound
        run: list[Any] = []
        while i in contents:
            run += contents[i]
            i += 1
        made += _cut(bound, run)
    return made


def _cut(bound: str, items: Sequence[Any]) -> list[_New]:
    n_nodes = -(-len(items) // MAX_ITEMS)
    cuts = [len(items) * k // n_nodes for k in range(n_nodes + 1)] if n_nodes else [0]
    made = []
    for start, end in pairwise(cuts):
        part = items[start:end]
        if isinstance(part[0], Link):
            made.append(_New(part[0].bound if start else bound, links=part))
        else:
            made.append(_New(part[0][0] if start else bound, files=part))
    return made


def _links(nodes: Sequence["Link | _New"], bound: str) -> list[Link]:
    """Links to nodes that are written. bound: of the first one, which its parent has."""
    found: list[Link] = []
    for node in nodes:
        link = node if isinstance(node, Link) else node.link
        assert link is not None, "it is written"
        found.append(link if found else replace(link, bound=bound))
    return found


def _write(session: WriteSession, repository_id: int, nodes: Sequence["Link | _New"]) -> None:
    """Insert the new ones of these nodes, and set their links."""
    new = [node for node in nodes if isinstance(node, _New)]
    if not new:
        return
    rows = [{"repository_id": repository_id}] * len(new)
    ids = session.scalars(insert(TreeNode).returning(TreeNode.id), rows).all()
    entries: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    for node, node_id in zip(new, ids, strict=True):
        if node.files:
            sums = sums_of(node.files)
            entries += [_entry_row(node_id, path, file) for path, file in node.files]
        else:
            sums = reduce(Sums.__add__, (link.sums for link in node.links))
            links += [_link_row(node_id, i, link) for i, link in enumerate(node.links)]
        node.link = Link(node.bound, node_id, sums)
    if entries:
        session.execute(insert(TreeEntry), entries)
    if links:
        session.execute(insert(TreeLink), links)


def _entry_row(node_id: int, path: str, file: TreeFile) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "path": path,
        "file_id": file.file_id,
        "mode": file.mode,
        "changed_number": file.changed.number,
        "changed_commit": file.changed.commit,
    }


def _link_row(parent_id: int, position: int, link: Link) -> dict[str, Any]:
    return {
        "parent_id": parent_id,
        "bound": link.bound if position else "",
        "child_id": link.child_id,
        "n_files": link.sums.n_files,
        "n_bytes": link.sums.n_bytes,
        "id_sum": link.sums.id.to_bytes(20, "big"),
        "marks": link.sums.marks,
        "changed_number": link.sums.changed.number,
        "changed_commit": link.sums.changed.commit,
    }

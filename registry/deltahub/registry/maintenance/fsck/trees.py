"""Compares the trees of revisions with their files, some nodes at a time."""

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Final

from sqlalchemy import or_, select

from deltahub.registry.catalog.trees.nodes import IS_UNUSED
from deltahub.registry.catalog.trees.read import Link, Tree
from deltahub.registry.catalog.trees.sums import Sums, sums_of
from deltahub.registry.db.models import File, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.db.tables.trees import TreeEntry, TreeLink, TreeNode
from deltahub.registry.maintenance.fsck.cursor import Cursor
from deltahub.registry.maintenance.fsck.findings import Finding, Findings
from deltahub.registry.registry import Registry

# Nodes of one transaction.
_PAGE: Final = 200


def check_trees(reg: Registry, cursor: Cursor) -> Findings:
    """Check that trees list files that are there, in order, and that their sums are right."""
    last = cursor.pages_from(0)
    while True:
        with reg.db.read() as session:
            query = select(TreeNode.id, TreeNode.repository_id).where(TreeNode.id > last)
            nodes = session.execute(query.order_by(TreeNode.id).limit(_PAGE)).all()
            if not nodes:
                break
            yield from _check_entries(session, [node_id for node_id, _ in nodes])
            yield from _check_nodes(session, dict(nodes))
            yield from _check_needed(session, [node_id for node_id, _ in nodes])
        last = nodes[-1][0]
        cursor.reached(last)
    with reg.db.read() as session:
        for owner in (Revision, DroppedRevision):
            rows = session.execute(
                select(owner.commit, TreeNode.id)
                .outerjoin(TreeNode, TreeNode.id == owner.tree_id)
                .where(
                    owner.tree_id.is_not(None),
                    or_(TreeNode.id.is_(None), TreeNode.repository_id != owner.repository_id),
                )
            )
            for commit, node_id in rows:
                what = "is gone" if node_id is None else "belongs to another repository"
                yield Finding("tree_wrong", commit, f"the tree of revision {commit} {what}")


def _check_entries(session: ReadSession, node_ids: Sequence[int]) -> Findings:
    rows = session.execute(
        select(TreeNode.repository_id, TreeEntry.path, TreeEntry.file_id, File.state)
        .join(TreeNode, TreeNode.id == TreeEntry.node_id)
        .outerjoin(File, File.id == TreeEntry.file_id)
        .where(
            TreeEntry.node_id.in_(node_ids),
            or_(File.id.is_(None), File.state.not_in(("landed", "ingested", "lost"))),
        )
    )
    for repository, path, file, state in rows:
        what = "has no row" if state is None else f"is {state}"
        text = f"a revision of repository {repository} lists {path!r}, but its file {file} {what}"
        yield Finding("entry_dangling", f"{repository}:{path}", text)


def _check_needed(session: ReadSession, node_ids: Sequence[int]) -> Findings:
    unused = session.scalars(select(TreeNode.id).where(TreeNode.id.in_(node_ids), *IS_UNUSED))
    for node_id in unused:
        text = f"node {node_id} is of no tree, and keeps files that nothing else may need"
        yield Finding("tree_wrong", str(node_id), text)


def _check_nodes(session: ReadSession, repositories: dict[int, int]) -> Findings:
    """repositories: node -> its repository."""
    tree = Tree(session, None)
    leaves = tree.read_leaves(repositories)
    to: defaultdict[int, list[tuple[int, Sums]]] = defaultdict(list)
    parent = select(TreeLink.child_id, TreeLink.parent_id).where(
        TreeLink.child_id.in_(repositories)
    )
    for child_id, parent_id in session.execute(parent):
        to[child_id] += (
            (parent_id, link.sums) for link in tree.links(parent_id) if link.child_id == child_id
        )
    for node_id, repository in repositories.items():
        links, files = tree.links(node_id), leaves[node_id]
        sums = sums_of(files) if files else reduce(Sums.__add__, (x.sums for x in links), Sums())
        where = f"node {node_id} of the trees of repository {repository}"
        if bool(files) == bool(links):
            text = f"{where} has files and links" if files else f"{where} has no files"
            yield Finding("tree_wrong", str(node_id), text)
        for parent_id, said in to[node_id]:
            if said != sums:
                text = f"{where} has {sums.n_files} files of {sums.n_bytes} bytes, but its parent"
                text += f" {parent_id} says something else of them"
                yield Finding("tree_wrong", str(node_id), text)
        if not _is_in_order(links):
            yield Finding("tree_wrong", str(node_id), f"{where} has links out of order")
        for link, after in zip(links, [*links[1:], None], strict=False):
            inside = leaves.get(link.child_id) or tree.read_leaves([link.child_id])[link.child_id]
            is_right = all(
                link.bound <= path and (after is None or path < after.bound) for path, _ in inside
            )
            if not is_right:
                text = f"{where} has files where their paths do not belong"
                yield Finding("tree_wrong", str(node_id), text)


def _is_in_order(links: Sequence[Link]) -> bool:
    bounds = [link.bound for link in links]
    return not links or (bounds[0] == "" and all(a < b for a, b in pairwise(bounds)))

"""Compares the trees of revisions with their files, some nodes at a time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Final

from sqlalchemy import func, or_, select

from deltahub.registry.catalog.trees.nodes import IS_UNUSED
from deltahub.registry.catalog.trees.read import Link, Tree
from deltahub.registry.catalog.trees.sums import Change, Sums, sums_of
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.db.tables.trees import TreeEntry, TreeLink, TreeNode
from deltahub.registry.maintenance.fsck.cursor import Cursor
from deltahub.registry.maintenance.fsck.findings import Finding, Findings
from deltahub.registry.registry import Registry

# Nodes of one transaction, and spans that are remembered.
_PAGE: Final = 200
_KEPT_SPANS: Final = 50_000
_TOP: Final = 2


@dataclass(frozen=True, slots=True)
class _Span:
    """The least and the greatest path below a node. level: 0 for a leaf, 1 for a group, 2 for a
    top node; None for a node that is none of these.
    """

    level: int | None
    first: str = ""
    last: str = ""


def check_trees(reg: Registry, cursor: Cursor) -> Findings:
    """Check that trees list files that are there, where they belong, and that their sums are right.

    Also that each node belongs to a tree of its repository.
    """
    last = cursor.begin_after(0)
    spans: dict[int, _Span] = {}
    while True:
        with reg.db.read() as session:
            query = select(TreeNode.id, TreeNode.repository_id).where(TreeNode.id > last)
            nodes = dict(session.execute(query.order_by(TreeNode.id).limit(_PAGE)).all())
            if not nodes:
                break
            yield from _check_entries(session, list(nodes))
            yield from _check_sums(session, nodes)
            yield from _check_shape(session, nodes, spans)
        last = max(nodes)
        cursor.reached(last)
        if len(spans) > _KEPT_SPANS:
            spans.clear()
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


def _check_sums(session: ReadSession, repositories: dict[int, int]) -> Findings:
    """Compare the sums of nodes with what links to them say. repositories: node -> its own."""
    tree = Tree(session, None)
    leaves = tree.read_leaves(repositories)
    said: defaultdict[int, set[Sums]] = defaultdict(set)
    rows = session.execute(select(TreeLink).where(TreeLink.child_id.in_(repositories)))
    for (row,) in rows:
        changed = Change(row.changed_number, row.changed_commit)
        total = int.from_bytes(row.id_sum, "big")
        said[row.child_id].add(Sums(row.n_files, row.n_bytes, total, row.marks, changed))
    for node_id, repository in repositories.items():
        links, files = tree.links(node_id), leaves[node_id]
        where = _place(node_id, repository)
        if bool(files) == bool(links):
            text = f"{where} has files and links" if files else f"{where} has no files"
            yield Finding("tree_wrong", str(node_id), text)
        sums = sums_of(files) if files else reduce(Sums.__add__, (x.sums for x in links), Sums())
        if said[node_id] - {sums}:
            text = f"{where} has {sums.n_files} files of {sums.n_bytes} bytes, but a node above it"
            yield Finding("tree_wrong", str(node_id), f"{text} says something else of them")


def _check_shape(
    session: ReadSession, repositories: dict[int, int], spans: dict[int, _Span]
) -> Findings:
    """Check that children are of one level, of the same repository, and lie between the bounds."""
    tree = Tree(session, None)
    children = {link.child_id for node in repositories for link in tree.links(node)}
    owners: dict[int, int] = {}
    query = select(TreeNode.id, TreeNode.repository_id)
    for batch in batches(sorted(children)):
        owners |= dict(session.execute(query.where(TreeNode.id.in_(batch))).all())
    unused = set(
        session.scalars(select(TreeNode.id).where(TreeNode.id.in_(repositories), *IS_UNUSED))
    )
    tops: set[int] = set()
    for owner in (Revision, DroppedRevision):
        tops.update(session.scalars(select(owner.tree_id).where(owner.tree_id.in_(repositories))))
    for node_id, repository in repositories.items():
        problems = []
        links = tree.links(node_id)
        level = _span(session, tree, node_id, spans).level
        if node_id in unused:
            problems.append("is of no tree, and keeps files that nothing else may need")
        if level is None or (node_id in tops) != (level == _TOP and node_id not in unused):
            problems.append("is no node of a tree of three levels")
        if any(owners.get(link.child_id) != repository for link in links):
            problems.append("has a child of another repository, or one that is gone")
        if not _is_in_order(links):
            problems.append("has links out of order")
        for link, after in zip(links, [*links[1:], None], strict=False):
            inside = _span(session, tree, link.child_id, spans)
            if inside.first < link.bound or (after is not None and inside.last >= after.bound):
                problems.append("has files where their paths do not belong")
        for problem in dict.fromkeys(problems):
            text = f"{_place(node_id, repository)} {problem}"
            yield Finding("tree_wrong", str(node_id), text)


def _span(
    session: ReadSession, tree: Tree, node_id: int, spans: dict[int, _Span], depth: int = 0
) -> _Span:
    if node_id in spans:
        return spans[node_id]
    least, greatest = func.min(TreeEntry.path), func.max(TreeEntry.path)
    query = select(least, greatest).where(TreeEntry.node_id == node_id)
    first, last = session.execute(query).one()
    if first is not None:
        found = _Span(0, first, last)
    else:
        links = tree.links(node_id) if depth <= _TOP else []
        below = [_span(session, tree, x.child_id, spans, depth + 1) for x in links]
        levels = {each.level for each in below}
        level = levels.pop() if len(levels) == 1 else None
        is_level = level is not None and level < _TOP
        found = _Span(
            level + 1 if is_level and level is not None else None,
            min((each.first for each in below), default=""),
            max((each.last for each in below), default=""),
        )
    spans[node_id] = found
    return found


def _place(node_id: int, repository: int) -> str:
    return f"node {node_id} of the trees of repository {repository}"


def _is_in_order(links: Sequence[Link]) -> bool:
    bounds = [link.bound for link in links]
    return not links or (bounds[0] == "" and all(a < b for a, b in pairwise(bounds)))

"""The family of a model, as one caller may see it: what it derives from, and what derives from it.

Nodes are models, as the heads of their main branches stand now. A model that the caller may not
read is not there, and nothing is looked for behind it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import aliased

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import LineageEdge, Namespace, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.lists import RevisionFacts
from deltahub.registry.registry import Registry

MOST_NODES: Final = 100
# Models beyond those that are counted.
_MOST_COUNTED: Final = 200


@dataclass(frozen=True)
class LineageNode:
    """A model of the graph. layer: 0 is the model itself; what it derives from has less.

    relation: to its bases, as its files say; None for a model without a base.
    """

    id: int
    name: str
    is_private: bool
    layer: int
    relation: str | None


@dataclass(frozen=True)
class LineageLink:
    """The child derives from the parent.

    is_declared: its pusher says so. share: of the bytes of the child's weights, those that are in
    the parent or stored as differences from it; None if nothing was measured.
    """

    parent: int
    child: int
    is_declared: bool
    share: float | None


@dataclass(frozen=True)
class LineageGraph:
    """nodes: by layer, then by name. n_more: models that were left out, at least."""

    root: int
    nodes: tuple[LineageNode, ...]
    links: tuple[LineageLink, ...]
    n_more: int


@dataclass
class _Found:
    layers: dict[int, int]
    links: dict[tuple[int, int], LineageLink]
    n_more: int = 0

    def add(self, link: LineageLink) -> None:
        known = self.links.get((link.parent, link.child))
        if known is not None:
            share = link.share if known.share is None else known.share
            is_declared = known.is_declared or link.is_declared
            link = LineageLink(link.parent, link.child, is_declared, share)
        self.links[link.parent, link.child] = link


def lineage_graph(
    reg: Registry, caller: Caller | None, name: str, most: int = MOST_NODES
) -> LineageGraph:
    """The family of a model: its ancestors first, then its descendants, level by level.

    most: models at most. RepositoryNotFound.
    """
    with reg.db.read() as session:
        root = load_repository(session, caller, name)
        found = _Found({root.id: 0}, {})
        for direction in (-1, 1):
            level: Collection[int] = [root.id]
            depth = 0
            while level:
                cancellation.check()
                depth += direction
                level = _grow(session, caller, found, level, depth, most)
        nodes = _nodes(session, found.layers)
    return LineageGraph(root.id, nodes, tuple(found.links.values()), found.n_more)


def _grow(
    session: ReadSession,
    caller: Caller | None,
    found: _Found,
    level: Collection[int],
    depth: int,
    most: int,
) -> list[int]:
    """Add the models one step further, and return those that are new."""
    is_up = depth < 0
    room = max(most - len(found.layers), 0)
    if not room and found.n_more:
        return []  # the graph is full, and says so
    links, n_more = _links(session, caller, level, found.layers, room, is_up=is_up)
    new: list[int] = []
    for link in links:
        other = link.parent if is_up else link.child
        if other not in found.layers:
            found.layers[other] = depth
            new.append(other)
        found.add(link)
    found.n_more += n_more
    return new


def _links(
    session: ReadSession,
    caller: Caller | None,
    level: Collection[int],
    known: Collection[int],
    room: int,
    *,
    is_up: bool,
) -> tuple[list[LineageLink], int]:
    """(the links from a level to at most `room` models that are new, how many more there are)."""
    child, parent = aliased(Revision), aliased(Revision)
    of_child = aliased(Repository)
    here, there = (child, parent) if is_up else (parent, child)
    query = (
        select(
            parent.repository_id,
            child.repository_id,
            LineageEdge.id,
            LineageEdge.origin,
            LineageEdge.share,
        )
        .join(child, child.id == LineageEdge.child_id)
        .join(of_child, of_child.id == child.repository_id)
        .join(parent, parent.id == LineageEdge.parent_id)
        .join(Repository, Repository.id == there.repository_id)
        .where(
            # What an earlier revision derived from may be no truth any more.
            of_child.head_id == child.id,
            parent.repository_id != child.repository_id,
            readable_repositories(caller),
        )
    )
    links: list[LineageLink] = []
    taken: set[int] = set()
    n_more = 0
    for batch in batches(level):
        # In no order: to sort the edges of a base with a million models would take a second.
        rows = session.execute(
            query.where(here.repository_id.in_(batch)).limit(
                4 * (room + len(known)) + _MOST_COUNTED
            )
        ).all()
        rows = sorted(rows, key=lambda row: (row[0] if is_up else row[1], row[2]))
        left_out: set[int] = set()
        for of_parent, of_its_child, _, origin, share in rows:
            other = of_parent if is_up else of_its_child
            if other not in known and other not in taken:
                if len(taken) >= room:
                    left_out.add(other)
                    continue
                taken.add(other)
            links.append(LineageLink(of_parent, of_its_child, origin == "declared", share))
        n_more += len(left_out)
    return links, n_more


def _nodes(session: ReadSession, layers: Mapping[int, int]) -> tuple[LineageNode, ...]:
    nodes: list[LineageNode] = []
    for batch in batches(layers):
        query = (
            select(Repository, Namespace.name, RevisionFacts.facts)
            .join(Namespace, Namespace.id == Repository.namespace_id)
            .outerjoin(RevisionFacts, RevisionFacts.revision_id == Repository.head_id)
            .where(Repository.id.in_(batch))
        )
        for repository, namespace, facts in session.execute(query):
            nodes.append(
                LineageNode(
                    repository.id,
                    f"{namespace}/{repository.name}",
                    repository.is_private,
                    layers[repository.id],
                    _relation(repository, facts),
                )
            )
    return tuple(sorted(nodes, key=lambda each: (each.layer, each.name)))


def _relation(repository: Repository, facts: dict[str, object] | None) -> str | None:
    if repository.role in ("adapter", "merge", "export"):
        return repository.role
    if facts is None:
        return None
    return "adapter" if facts.get("adapter_base") else str(facts.get("relation") or "finetune")

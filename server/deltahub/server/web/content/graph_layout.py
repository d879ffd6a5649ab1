"""Places of nodes and curves of links: a graph of models, from left to right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deltahub.registry.lineage.graph import LineageGraph, LineageLink, LineageNode

WIDTH: Final = 200
HEIGHT: Final = 44
_COLUMN: Final = WIDTH + 90
_ROW: Final = HEIGHT + 16
_MARGIN: Final = 4
# Cycles, which declarations may make, end after so many steps.
_MOST_STEPS: Final = 100


@dataclass(frozen=True)
class PlacedNode:
    """A node, and its upper left corner."""

    node: LineageNode
    x: int
    y: int


@dataclass(frozen=True)
class PlacedLink:
    """A link, its curve as an SVG path, and the place of its label."""

    link: LineageLink
    path: str
    x: float
    y: float


@dataclass(frozen=True)
class Layout:
    width: int
    height: int
    nodes: Sequence[PlacedNode]
    links: Sequence[PlacedLink]


@dataclass(frozen=True)
class TreeItem:
    """A node of the nested list. is_again: the list has it, with what is below it, before."""

    node: LineageNode
    link: LineageLink | None
    depth: int
    is_again: bool


def place(graph: LineageGraph) -> Layout:
    """Return where everything is: what derives from a model is right of it."""
    column_of = _columns(graph)
    columns: dict[int, list[LineageNode]] = {}
    for each in graph.nodes:
        columns.setdefault(column_of[each.id], []).append(each)
    rows: dict[int, float] = {}
    placed: dict[int, PlacedNode] = {}
    tallest = max(map(len, columns.values()))
    for number, column in enumerate(sorted(columns)):
        nodes = sorted(columns[column], key=lambda each: (_middle(graph, each, rows), each.name))
        first = (tallest - len(nodes)) / 2 if len(nodes) < 20 else 0
        for row, node in enumerate(nodes):
            rows[node.id] = first + row
            y = round(_MARGIN + (first + row) * _ROW)
            placed[node.id] = PlacedNode(node, _MARGIN + number * _COLUMN, y)
    links = [_curve(each, placed) for each in graph.links]
    return Layout(
        len(columns) * _COLUMN - (_COLUMN - WIDTH) + 2 * _MARGIN,
        tallest * _ROW - (_ROW - HEIGHT) + 2 * _MARGIN,
        list(placed.values()),
        links,
    )


def as_list(graph: LineageGraph) -> list[TreeItem]:
    """Return the same as a nested list: below a model stands what derives from it."""
    by_id = {each.id: each for each in graph.nodes}
    children: dict[int, list[LineageLink]] = {}
    for one in sorted(graph.links, key=lambda each: by_id[each.child].name):
        children.setdefault(one.parent, []).append(one)
    has_parent = {each.child for each in graph.links}
    items: list[TreeItem] = []
    seen: set[int] = set()
    roots = [each for each in graph.nodes if each.id not in has_parent]
    # A cycle has no root.
    for root in [*roots, *graph.nodes]:
        waiting: list[tuple[LineageNode, LineageLink | None, int]] = (
            [] if root.id in seen else [(root, None, 0)]
        )
        while waiting:
            node, link, depth = waiting.pop()
            items.append(TreeItem(node, link, depth, node.id in seen))
            if node.id not in seen:
                seen.add(node.id)
                below = children.get(node.id, [])
                waiting += [(by_id[each.child], each, depth + 1) for each in reversed(below)]
    return items


def _columns(graph: LineageGraph) -> Mapping[int, int]:
    """Node -> the longest way to it from a model without a base."""
    found = {each.id: 0 for each in graph.nodes}
    for _ in range(min(len(found), _MOST_STEPS)):
        is_changed = False
        for link in graph.links:
            if found[link.child] <= found[link.parent] and found[link.parent] < len(found):
                found[link.child] = found[link.parent] + 1
                is_changed = True
        if not is_changed:
            break
    return found


def _middle(graph: LineageGraph, node: LineageNode, rows: Mapping[int, float]) -> float:
    """The middle of the rows of what a node derives from, so that few links cross."""
    parents = [rows[each.parent] for each in graph.links
               if each.child == node.id and each.parent in rows]  # fmt: skip
    return sum(parents) / len(parents) if parents else 0.0


def _curve(link: LineageLink, placed: Mapping[int, PlacedNode]) -> PlacedLink:
    parent, child = placed[link.parent], placed[link.child]
    x, y = parent.x + WIDTH, parent.y + HEIGHT // 2
    to_x, to_y = child.x, child.y + HEIGHT // 2
    bend = max(abs(to_x - x) // 2, 30)
    path = f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
    return PlacedLink(link, path, to_x - 6, to_y - 5)

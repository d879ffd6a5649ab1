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
_BULGE: Final = 46
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
    """A link, its curve as an SVG path, and the place of its label.

    is_main: it says where the child comes from; others are measured beside it.
    """

    link: LineageLink
    is_main: bool
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
    """A node of the nested list. is_again: the list has it, with what is below it, before.

    near: (name, share) of models that its weights were found near to, beside those it stands below.
    """

    node: LineageNode
    link: LineageLink | None
    depth: int
    is_again: bool
    near: Sequence[tuple[str, float]]


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
    main = set(_main_links(graph))
    links = [_curve(each, placed, each in main) for each in graph.links]
    return Layout(
        len(columns) * _COLUMN - (_COLUMN - WIDTH) + 2 * _MARGIN + _BULGE,
        tallest * _ROW - (_ROW - HEIGHT) + 2 * _MARGIN,
        list(placed.values()),
        links,
    )


def as_list(graph: LineageGraph) -> list[TreeItem]:
    """Return the same as a nested list: below a model stands what derives from it."""
    by_id = {each.id: each for each in graph.nodes}
    main = _main_links(graph)
    children: dict[int, list[LineageLink]] = {}
    for one in sorted(main, key=lambda each: by_id[each.child].name):
        children.setdefault(one.parent, []).append(one)
    near: dict[int, list[tuple[str, float]]] = {}
    for one in sorted(set(graph.links) - set(main), key=lambda each: -(each.share or 0)):
        near.setdefault(one.child, []).append((by_id[one.parent].name, one.share or 0.0))
    has_parent = {each.child for each in main}
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
            items.append(TreeItem(node, link, depth, node.id in seen, near.get(node.id, ())))
            if node.id not in seen:
                seen.add(node.id)
                below = children.get(node.id, [])
                waiting += [(by_id[each.child], each, depth + 1) for each in reversed(below)]
    return items


def _main_links(graph: LineageGraph) -> list[LineageLink]:
    """The links that say where a model comes from.

    Those that are declared; of a model without any, the one of the largest share. Weights are near
    to those of sisters, too, and such links would make a chain of a family.
    """
    declared = [each for each in graph.links if each.is_declared]
    has_declared = {each.child for each in declared}
    best: dict[int, LineageLink] = {}
    for link in graph.links:
        known = best.get(link.child)
        if link.child not in has_declared and (
            known is None or (link.share or 0.0) > (known.share or 0.0)
        ):
            best[link.child] = link
    return [*declared, *best.values()]


def _columns(graph: LineageGraph) -> Mapping[int, int]:
    """Node -> the longest way to it from a model without a base."""
    links = _main_links(graph)
    found = {each.id: 0 for each in graph.nodes}
    for _ in range(min(len(found), _MOST_STEPS)):
        is_changed = False
        for link in links:
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


def _curve(link: LineageLink, placed: Mapping[int, PlacedNode], is_main: bool) -> PlacedLink:
    parent, child = placed[link.parent], placed[link.child]
    x, y = parent.x + WIDTH, parent.y + HEIGHT // 2
    to_x, to_y = child.x, child.y + HEIGHT // 2
    if to_x < x:
        # Of one column, or backwards: around the right side.
        to_x = child.x + WIDTH
        path = f"M{x} {y}C{x + _BULGE} {y} {to_x + _BULGE} {to_y} {to_x} {to_y}"
        return PlacedLink(link, is_main, path, to_x + _BULGE, to_y - 5)
    bend = max(abs(to_x - x) // 2, 30)
    path = f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
    return PlacedLink(link, is_main, path, to_x - 6, to_y - 5)

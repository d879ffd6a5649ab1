"""Places of nodes and curves of links: a graph of models, from left to right."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from deltahub.registry.lineage.graph import LineageGraph, LineageLink, LineageNode

WIDTH: Final = 200
HEIGHT: Final = 44
_COLUMN: Final = WIDTH + 90
_GAP: Final = 16
_MARGIN: Final = 4
# The height of a lane, in which links pass the models of a column.
_LANE_HEIGHT: Final = 12
# A column of so many models begins at the top; one of fewer is centred.
_MOST_CENTRED: Final = 20
_BULGE: Final = 46
# Cycles, which declarations may make, end after so many steps.
_MOST_STEPS: Final = 100


@dataclass(frozen=True)
class _Lane:
    """Where links to the right of a model pass a column."""

    node: int
    column: int


# A model, by its id, or a lane.
_Place: TypeAlias = int | _Lane


@dataclass(frozen=True)
class _Spot:
    x: int
    y: int
    height: int

    @property
    def middle(self) -> int:
        return self.y + self.height // 2


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
    """Return where everything is: what derives from a model is right of it.

    A link over several columns has a lane of its own in each column between, so that it passes
    under no other model. The links that leave a model share its lanes.
    """
    columns = _columns(graph)
    routes = [_route(link, columns) for link in graph.links]
    spots = _spots(graph.nodes, columns, [each for each in routes if each])
    main = set(_main_links(graph))
    labels = Counter(link.child for link in main if link.share is not None)
    placed = [
        _drawn(link, route, spots, (link in main, labels[link.child] > 1))
        for link, route in zip(graph.links, routes, strict=True)
    ]
    return Layout(
        max(each.x for each in spots.values()) + WIDTH + _MARGIN + _BULGE,
        max(each.y + each.height for each in spots.values()) + _MARGIN,
        [PlacedNode(each, spots[each.id].x, spots[each.id].y) for each in graph.nodes],
        placed,
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
    """Node -> the longest way to it from a model without a base. No column is empty."""
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
    number = {column: index for index, column in enumerate(sorted(set(found.values())))}
    return {node: number[column] for node, column in found.items()}


def _route(link: LineageLink, columns: Mapping[int, int]) -> list[_Place]:
    """The places that a link passes from left to right; empty for a link within a column."""
    left, right = sorted((link.parent, link.child), key=lambda each: columns[each])
    if columns[left] == columns[right]:
        return []
    lanes = [_Lane(left, column) for column in range(columns[left] + 1, columns[right])]
    return [left, *lanes, right]


def _spots(
    nodes: Sequence[LineageNode], columns: Mapping[int, int], routes: Sequence[Sequence[_Place]]
) -> Mapping[_Place, _Spot]:
    """Where models and lanes lie: in a column each near to what it derives from."""
    names = {each.id: each.name for each in nodes}
    before: dict[_Place, set[_Place]] = {}
    members: dict[int, dict[_Place, None]] = {}
    for each in nodes:
        members.setdefault(columns[each.id], {})[each.id] = None
    for route in routes:
        for left, right in pairwise(route):
            before.setdefault(right, set()).add(left)
            if isinstance(right, _Lane):
                members[right.column][right] = None
    heights = {number: sum(map(_height, column)) + _GAP * (len(column) - 1)
               for number, column in members.items()}  # fmt: skip
    spots: dict[_Place, _Spot] = {}

    def order(place: _Place) -> tuple[float, str]:
        middles = [spots[each].middle for each in before.get(place, ())]
        middle = sum(middles) / len(middles) if middles else 0.0
        # A lane has no name, and lies above the models that belong as high.
        return middle, "" if isinstance(place, _Lane) else names[place]

    for number in sorted(members):
        column = sorted(members[number], key=order)
        is_centred = len(column) < _MOST_CENTRED
        y = _MARGIN + (max(heights.values()) - heights[number]) // 2 * is_centred
        for place in column:
            spots[place] = _Spot(_MARGIN + number * _COLUMN, y, _height(place))
            y += _height(place) + _GAP
    return spots


def _height(place: _Place) -> int:
    return _LANE_HEIGHT if isinstance(place, _Lane) else HEIGHT


def _drawn(
    link: LineageLink,
    route: Sequence[_Place],
    spots: Mapping[_Place, _Spot],
    kind: tuple[bool, bool],
) -> PlacedLink:
    """kind: whether the link is a main one, and whether its child has labels of other links, too.

    Curves stay between columns, where no model is.
    """
    is_main, has_others = kind
    if not route:
        # Within a column: around the right side.
        parent, child = spots[link.parent], spots[link.child]
        x = child.x + WIDTH
        path = f"M{x} {parent.middle}C{x + _BULGE} {parent.middle} {x + _BULGE} {child.middle}"
        path += f" {x} {child.middle}"
        return PlacedLink(link, is_main, path, x + _BULGE, child.middle - 5)
    first, *rest = (spots[each] for each in route)
    x, y = first.x + WIDTH, first.middle
    path = f"M{x} {y}"
    for spot in rest:
        bend = (x + spot.x) // 2
        path += f"C{bend} {y} {bend} {spot.middle} {spot.x} {spot.middle}"
        if spot is not rest[-1]:
            path += f"H{spot.x + WIDTH}"
            x, y = spot.x + WIDTH, spot.middle
    last = rest[-1]
    if has_others:
        # Where the curves to one model are still apart: two thirds of the way to it.
        place = (last.x - 20, y + 0.72 * (last.middle - y) - 3)
    else:
        # At the end, on the side that the curve does not come from.
        place = (last.x - 6, last.middle + (14 if y < last.middle else -5))
    return PlacedLink(link, is_main, path, *place)

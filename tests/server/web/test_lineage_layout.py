"""The drawing of a family: no link passes under a model that it does not belong to."""

import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.registry.lineage.graph import LineageGraph, LineageLink, LineageNode
from deltahub.server.web.content.graph_layout import HEIGHT, WIDTH, Layout, PlacedLink, place

N_POINTS = 40


def graph_of(links: Sequence[tuple[int, int, bool]], n_nodes: int) -> LineageGraph:
    """links: (parent, child, whether it is declared)."""
    nodes = tuple(LineageNode(each, f"ann/m{each:03}", False, 0, None) for each in range(n_nodes))
    found = {(a, b): LineageLink(a, b, declared, 0.5) for a, b, declared in links}
    return LineageGraph(0, nodes, tuple(found.values()), 0)


def star(n_children: int) -> list[tuple[int, int, bool]]:
    return [(0, child, True) for child in range(1, n_children + 1)]


def with_merges(n_children: int, n_merges: int) -> LineageGraph:
    """One base, its fine-tunes, and merges of all of them, which also name the base."""
    links = star(n_children)
    for merge in range(n_children + 1, n_children + n_merges + 1):
        links += [(parent, merge, True) for parent in range(n_children + 1)]
    return graph_of(links, n_children + n_merges + 1)


def points(path: str) -> Iterator[tuple[float, float]]:
    """Points along a path of the commands M, C and H."""
    x = y = 0.0
    for command, text in re.findall(r"([MCH])([^MCH]*)", path):
        numbers = [float(each) for each in text.split()]
        if command == "M":
            x, y = numbers
        elif command == "H":
            yield from ((x + (numbers[0] - x) * step / N_POINTS, y) for step in range(N_POINTS + 1))
            x = numbers[0]
        else:
            xs, ys = (x, *numbers[::2]), (y, *numbers[1::2])
            for step in range(N_POINTS + 1):
                t = step / N_POINTS
                weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t * t, t**3)
                yield sum(map(float.__mul__, weights, xs)), sum(map(float.__mul__, weights, ys))
            x, y = numbers[-2:]


def crossed(layout: Layout, link: PlacedLink) -> set[int]:
    """The models that a link passes under, without its own two."""
    own = {link.link.parent, link.link.child}
    return {
        each.node.id
        for each in layout.nodes
        for x, y in points(link.path)
        if each.x < x < each.x + WIDTH and each.y < y < each.y + HEIGHT
    } - own


def check(graph: LineageGraph) -> None:
    layout = place(graph)
    assert {each.node.id for each in layout.nodes} == {each.id for each in graph.nodes}
    assert [each.link for each in layout.links] == list(graph.links)
    for link in layout.links:
        assert crossed(layout, link) == set(), link
        for x, y in points(link.path):
            assert 0 <= x <= layout.width
            assert 0 <= y <= layout.height
    places = [(each.x, each.y) for each in layout.nodes]
    for number, (x, y) in enumerate(places):
        assert x + WIDTH <= layout.width
        assert y + HEIGHT <= layout.height
        for to_x, to_y in places[:number]:
            assert abs(x - to_x) >= WIDTH or abs(y - to_y) >= HEIGHT


@pytest.mark.parametrize("n_merges", [1, 2, 5])
@pytest.mark.parametrize("n_children", [3, 4, 7, 19, 20])
def test_a_merge_of_fine_tunes_is_linked_to_their_base_around_them(
    n_children: int, n_merges: int
) -> None:
    check(with_merges(n_children, n_merges))


def test_a_model_that_was_measured_near_to_one_left_of_its_base_is_linked_around() -> None:
    check(graph_of([*star(5), (1, 6, True), (6, 7, True), (7, 0, False), (5, 7, False)], 8))


def test_sisters_that_are_near_to_each_other_are_linked_beside_their_column() -> None:
    check(graph_of([*star(6), (1, 2, False), (1, 6, False)], 7))


def test_declarations_in_a_circle_are_drawn() -> None:
    check(graph_of([(0, 1, True), (1, 2, True), (2, 0, True), (0, 3, True)], 4))


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=30))
def test_no_link_of_any_graph_passes_under_another_model(links: set[tuple[int, int, bool]]) -> None:
    check(graph_of([each for each in sorted(links) if each[0] != each[1]], 10))


@pytest.mark.parametrize("n_children", [2, 3, 8, 20])
def test_the_percentages_of_a_merge_stand_apart(n_children: int) -> None:
    layout = place(with_merges(n_children, 1))
    labels = [(each.x, each.y) for each in layout.links if each.is_main]
    for number, (x, y) in enumerate(labels):
        for to_x, to_y in labels[:number]:
            assert abs(x - to_x) > 30 or abs(y - to_y) > 8, (x, y, to_x, to_y)

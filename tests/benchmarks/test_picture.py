"""The picture of the codecs can be read: no name lies upon another."""

import re
from itertools import combinations

from benchmarks.codecs.picture import Point, draw

POINTS = [
    Point("fast", 23.8, 830, True),
    Point("default", 14.6, 501, True),
    Point("most", 14.3, 493, True),
    Point("a coder of bits", 29.3, 113, False),
    Point("planes", 34.0, 793, False),
    Point("mapped, one", 29.1, 600, False),
    Point("mapped, two", 30.3, 687, False),
    Point("in the middle", 37.7, 582, False),
    Point("alone", 66.0, 894, True),
    Point("plain", 78.2, 672, False),
]


def test_names_do_not_lie_upon_each_other() -> None:
    label = r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*%\))</text>'
    names = [(float(x), float(y), text) for x, y, text in re.findall(label, draw(POINTS, "all"))]
    assert len(names) == len(POINTS)
    for (x, y, text), (other_x, other_y, other) in combinations(names, 2):
        left = text if x < other_x else other
        is_beside = abs(x - other_x) > 7 * len(left)  # a letter takes about 7 units
        assert is_beside or abs(y - other_y) >= 16, (text, other)

"""Sharpens the factors of a difference that is of low rank but for the rounding of its words.

A merged adapter is such a difference: the factors are fitted again by alternating half steps, first
to the differences, then to the intervals that the words tell.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.least_squares import Product, Rule, Steps
from deltahub.codecs.fm_delta.low_rank.randomized_svd import Factors, orthonormal
from deltahub.codecs.fm_delta.low_rank.tensor_pair import Pair

Effort: TypeAlias = Literal["default", "max"]

# Words of the rows that the first steps look at.
_SAMPLED: Final[dict[Effort, int]] = {"default": 1 << 16, "max": 1 << 17}
# What a fit of a merge may leave, of what rounding alone leaves. Merging in F32 rounds sums too.
_MOST_ERROR: Final = {DType.BF16: 1.5, DType.F16: 1.5, DType.F32: 16}
# The same before the first fit, and more by this for each number of the factors a word: so much of
# the rounding is in them, and in fine words it weighs more. Merges leave 0.9 to 1.4.
_MOST_SKETCHED: Final = 1.6
_MOST_IN_FACTORS: Final = 4


class Ladder(NamedTuple):
    """What is tried in turn.

    sampled: at both factors on a sample. first: at left factors of all rows. all: at right and left
    ones on all, in turn.
    """

    sampled: tuple[Rule, ...]
    first: Rule
    all: tuple[Rule, ...]


def _near(octaves: int) -> Rule:
    """A little further than the other factor, as it is, would ask: it gives way in its turn."""
    return Rule(octaves, further=1.1)


_LADDERS: Final[dict[Effort, Ladder]] = {
    "default": Ladder(
        (_near(2),),
        _near(3),
        (
            *(_near(octaves) for octaves in (4, 5, 6, 7)),
            Rule(8, 0.1, 0.05, further=1.2),
            Rule(8, 0.05, 0.03, further=1.2),
        ),
    ),
    "max": Ladder(
        (Rule(2),),
        Rule(2),
        (
            *(Rule(octaves) for octaves in (3, 5, 6, 7)),
            *(Rule(8, 0.1, 0.1) for _ in range(2)),
            *(Rule(8, margin, 0.03) for margin in (0.1, 0.1, 0.05, 0.05)),
            *(Rule(8, 0.02, 0.01) for _ in range(4)),
        ),
    ),
}
# Of products that were rounded to BF16 before they were added: their intervals are wide, and soon
# reached.
_LADDER_ROUNDED: Final = Ladder(
    (),
    Rule(3),
    (
        _near(4),
        Rule(4, 0.1, 0.075, further=1.2),
        Rule(7, 0.1, 0.027, further=1.2),
        Rule(11, 0.1, 0.05, further=0.9),
    ),
)
# Merging in F32 rounds sums of products too, about so much.
_LADDER_F32: Final = Ladder((Rule(2), Rule(2)), Rule(2), ())


class Merge(NamedTuple):
    """is_rounded: the product fits better where it is rounded before it is added."""

    factors: Factors
    is_rounded: bool


def sharpened(pair: Pair, factors: Factors, effort: Effort) -> Merge | None:
    """The factors fitted again; None where they leave more than rounding does.

    factors: as many components as an adapter may have; those that are noise are left out.
    """
    ladder = _LADDER_F32 if pair.dtype is DType.F32 else _LADDERS[effort]
    sampled = max(8 * len(factors.strengths), _SAMPLED[effort] // pair.columns)
    every = slice(None, None, max(1, pair.rows // sampled))
    part = pair.part(every)
    steps = Steps(part, is_rounded=False)
    left = (factors.left * factors.strengths).astype(pair.real)
    product = Product(left[every], factors.right.astype(pair.real))
    if pair.dtype is not DType.F32:
        share = product.rank * (part.rows + part.columns) / part.size
        most = _MOST_SKETCHED + _MOST_IN_FACTORS * share
        if steps.error(product, ladder.sampled[0]) > most:
            return None
    is_rounded = False
    for i, rule in enumerate(ladder.sampled):
        product = steps.right(_left_orthonormal(steps.left(product, rule)), rule)
        product = _without_noise(product, steps.noise(rule))
        if i > 0:
            continue
        if steps.error(product, rule) > _MOST_ERROR[pair.dtype]:
            return None
        is_rounded = pair.dtype is not DType.F32 and _is_rounded(part, product)
        steps = Steps(part, is_rounded)
    if is_rounded and pair.dtype is DType.BF16 and effort == "default":
        ladder = _LADDER_ROUNDED
    steps = Steps(pair, is_rounded)
    # The sketch tells left factors of all rows, but for the rows' turn.
    turned = (left @ (factors.right @ product.right.T)).astype(pair.real)
    product = steps.left(Product(turned, product.right), ladder.first)
    for i, rule in enumerate(ladder.all):
        if i % 2 == 0:
            product = steps.right(_left_orthonormal(product), rule)
        else:
            product = steps.left(_right_orthonormal(product), rule)
    exact = product.left.astype(np.float64), product.right.astype(np.float64)
    return Merge(Factors.of_product(*exact), is_rounded)


def _left_orthonormal(product: Product) -> Product:
    left = orthonormal(product.left)
    return Product(left, (left.T @ product.left) @ product.right)


def _right_orthonormal(product: Product) -> Product:
    right = orthonormal(product.right.T).T
    return Product(product.left @ (product.right @ right.T), np.ascontiguousarray(right))


def _without_noise(product: Product, noise: float) -> Product:
    """The product without components that noise of this size would have, its right orthonormal."""
    left, right = product.left.astype(np.float64), product.right.astype(np.float64)
    found = Factors.of_product(left, right)
    edge = noise * (np.sqrt(len(left)) + np.sqrt(right.shape[1]))
    kept = found.first(max(1, int((found.strengths > 1.2 * edge).sum())))
    real = product.left.dtype
    return Product((kept.left * kept.strengths).astype(real), kept.right.astype(real))


def _is_rounded(part: Pair, product: Product) -> bool:
    """Whether products that are rounded before they are added make more of the words."""
    rows = part.sample()
    products = product.left[rows] @ product.right
    base = part.floats(part.base[rows]).astype(np.float64)
    equal = [
        int(np.count_nonzero(part.rounded(base + added) == part.source[rows]))
        for added in (products, part.floats(part.rounded(products)))
    ]
    return equal[1] > equal[0]

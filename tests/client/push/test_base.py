"""The base tensor that a tensor is encoded against, and the base plan of a part of it."""

import pytest

from deltahub.client.push.base import BaseSet, BaseTensor
from deltahub.codecs.dtypes import DType
from deltahub.codecs.files.split import FilePiece
from deltahub.codecs.frames.base_plan import BaseSegment
from deltahub.codecs.ids import ZERO_ID

ID, OTHER = bytes([7]) * 32, bytes([9]) * 32


def piece(name: str | None, shape: tuple[int, ...], dtype: str = "BF16") -> FilePiece:
    return FilePiece(0, 1, False, dtype, shape, name)


def base(name: str, shape: tuple[int, ...], dtype: DType = DType.BF16, fill: int = 7) -> BaseTensor:
    return BaseTensor(bytes([fill]) * 32, name, dtype, shape)


@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        ((8, 4), "BF16", True),
        ((8, 4), "F32", True),  # cast
        ((10, 4), "BF16", True),  # rows appended
        ((6, 4), "F16", True),  # rows removed, and cast
        ((17, 4), "BF16", False),  # more new rows than old
        ((8, 5), "BF16", False),
        ((4, 8), "BF16", False),
        ((32,), "BF16", False),
        ((8, 4), "I32", False),  # no cast between integers and floats
        ((8, 4), "F4", False),  # not an element type of frames
    ],
)
def test_what_fits(shape: tuple[int, ...], dtype: str, fits: bool) -> None:
    found = BaseSet([base("a.w", (8, 4))]).match(piece("a.w", shape, dtype))
    assert (found is not None) == fits


def test_another_prefix_is_recognised_if_the_rest_says_which_tensor_it_is() -> None:
    bases = BaseSet([base(f"h.{i}.up.weight", (8, 4), fill=i + 1) for i in range(3)])
    found = bases.match(piece("model.h.1.up.weight", (8, 4)))
    assert found is not None
    assert found.name == "h.1.up.weight"
    assert bases.match(piece("h.9.up.weight", (8, 4))) is None
    assert bases.match(piece("up.weight", (8, 4))) is None
    assert bases.match(piece(None, (8, 4))) is None
    wrapped = BaseSet([base("model.h.1.up.weight", (8, 4))])
    assert wrapped.match(piece("h.1.up.weight", (8, 4))) is not None


def test_the_longest_common_ending_decides() -> None:
    bases = BaseSet([base("x.h.1.w", (8, 4), fill=1), base("y.h.1.w", (8, 4), fill=2)])
    assert bases.match(piece("model.y.h.1.w", (8, 4))) is not None
    assert bases.match(piece("model.h.1.w", (8, 4))) is None


def test_only_what_the_hub_knows_is_kept() -> None:
    bases = BaseSet([base("a", (2,), fill=1), base("b", (2,), fill=2)])
    assert bases.sizes() == {"01" * 32: 4, "02" * 32: 4}
    assert bases.only({"02" * 32}).match(piece("a", (2,))) is None
    assert len(bases.only({"02" * 32})) == 1


def test_a_plan_covers_a_part_with_the_base_and_new_rows_with_zeros() -> None:
    tensor = base("w", (8, 4))
    whole = BaseSegment(ID, DType.BF16, 4, 28)
    assert tensor.plan(DType.BF16, 4, 28).segments == (whole,)
    plan = tensor.plan(DType.F32, 28, 10)
    assert plan.segments == (
        BaseSegment(ID, DType.BF16, 28, 4),
        BaseSegment(ZERO_ID, DType.F32, 0, 6),
    )
    assert plan.is_cast
    assert tensor.plan(DType.BF16, 40, 5).base_ids() == ()
    for start, count in ((0, 8), (30, 10), (32, 4)):
        assert tensor.plan(DType.BF16, start, count).fault(OTHER, DType.BF16, count) is None

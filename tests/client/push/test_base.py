"""Which tensor of a base a pushed tensor is coded against."""

import pytest

from deltahub.client.local.tensor_sources import MissingTensor
from deltahub.client.push.base import BaseSet
from deltahub.codecs.frames.base_choice import BaseTensor, TensorInfo


def info(name: str, shape: tuple[int, ...], dtype: str = "BF16") -> TensorInfo:
    return TensorInfo(name, dtype, shape)


def sets(*tensors: BaseTensor) -> BaseSet:
    return BaseSet(tensors, no_bytes)


def no_bytes(tensor: bytes, first_byte: int, out: memoryview) -> None:
    raise MissingTensor(tensor)


def base(name: str, shape: tuple[int, ...], fill: int = 7) -> BaseTensor:
    return BaseTensor(name, "BF16", shape, bytes([fill]) * 32)


@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        ((8, 4), "BF16", True),
        ((8, 4), "F32", True),  # cast
        ((10, 4), "BF16", True),  # rows appended
        ((6, 4), "F16", True),  # rows removed, and cast
        ((17, 4), "BF16", True),  # more new rows than old: the sample tells
        ((8, 5), "BF16", False),
        ((4, 8), "BF16", False),
        ((32,), "BF16", False),
        ((8, 4), "I32", False),  # no cast between integers and floats
        ((8, 4), "F4", False),  # not an element type of frames
    ],
)
def test_what_fits(shape: tuple[int, ...], dtype: str, fits: bool) -> None:
    found = sets(base("a.w", (8, 4))).match(info("a.w", shape, dtype))
    assert (found is not None) == fits


def test_another_prefix_is_recognised_if_the_rest_says_which_tensor_it_is() -> None:
    bases = sets(*[base(f"h.{i}.up.weight", (8, 4), fill=i + 1) for i in range(3)])
    found = bases.match(info("model.h.1.up.weight", (8, 4)))
    assert found is not None
    assert found.name == "h.1.up.weight"
    assert bases.match(info("h.9.up.weight", (8, 4))) is None
    assert bases.match(info("up.weight", (8, 4))) is None
    wrapped = sets(base("model.h.1.up.weight", (8, 4)))
    assert wrapped.match(info("h.1.up.weight", (8, 4))) is not None


def test_the_longest_common_ending_decides() -> None:
    bases = sets(base("x.h.1.w", (8, 4), fill=1), base("y.h.1.w", (8, 4), fill=2))
    assert bases.match(info("model.y.h.1.w", (8, 4))) is not None
    assert bases.match(info("model.h.1.w", (8, 4))) is None


def test_of_tensors_that_end_alike_the_only_one_of_the_same_shape_is_taken() -> None:
    bases = sets(base("x.h.1.bias", (8,), fill=1), base("y.h.1.bias", (12,), fill=2))
    found = bases.match(info("model.h.1.bias", (12,)))
    assert found is not None
    assert found.name == "y.h.1.bias"
    assert bases.match(info("model.h.1.bias", (10,))) is None


def test_only_what_the_hub_knows_is_kept() -> None:
    bases = sets(base("a", (2,), fill=1), base("b", (2,), fill=2))
    assert bases.sizes() == {"01" * 32: 4, "02" * 32: 4}
    assert bases.only({"02" * 32}).match(info("a", (2,))) is None
    assert len(bases.only({"02" * 32})) == 1

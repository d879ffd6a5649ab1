"""A base is aligned with its tensor, and chosen by a sample, on really trained models."""

from collections.abc import Mapping

import pytest
import torch

from deltahub.codecs import DType, InvalidInput
from deltahub.codecs.frames.base_choice import (
    MUST_BEAT,
    BaseSearch,
    BaseTensor,
    TensorInfo,
    align,
    coded_as,
    join,
)
from deltahub.codecs.frames.base_plan import BasePlan, BaseSegment, slice_plan
from deltahub.codecs.frames.nearness import nearness, to_bf16
from deltahub.codecs.ids import ZERO_ID, tensor_id
from support.models import tiny_models as tiny

ID, OTHER = bytes([7]) * 32, bytes([9]) * 32
NAME = "up.weight"


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def info(shape: tuple[int, ...], dtype: str = "BF16") -> TensorInfo:
    return TensorInfo("w", dtype, shape)


def base(shape: tuple[int, ...], dtype: str = "BF16", fill: int = 7) -> BaseTensor:
    return BaseTensor("w", dtype, shape, bytes([fill]) * 32)


# -- alignment ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "can_align"),
    [
        ((8, 4), "BF16", True),
        ((8, 4), "F32", True),  # cast
        ((10, 4), "BF16", True),  # rows appended
        ((6, 4), "F16", True),  # rows removed, and cast
        ((17, 4), "BF16", True),  # more new rows than old
        ((8, 5), "BF16", False),
        ((4, 8), "BF16", False),
        ((32,), "BF16", False),
        ((), "BF16", False),
        ((0, 4), "BF16", False),
        ((8, 4), "I32", False),  # no cast between integers and floats
        ((8, 4), "F8_E4M3", False),
        ((8, 4), "F4", False),  # not an element type of frames
    ],
)
def test_shapes_and_types_that_can_be_aligned(
    shape: tuple[int, ...], dtype: str, can_align: bool
) -> None:
    plan = align(info(shape, dtype), base((8, 4)))
    assert (plan is not None) == can_align
    if plan is not None:
        count = info(shape, dtype).count
        assert plan.fault(OTHER, DType[dtype], count) is None
        assert plan.is_cast == (dtype != "BF16")


def test_scalars_and_vectors_are_aligned_too() -> None:
    assert align(info(()), base(())) == BasePlan((BaseSegment(ID, DType.BF16, 0, 1),), False)
    longer = align(info((5,)), base((3,)))
    assert longer is not None
    assert [segment.count for segment in longer.segments] == [3, 2]
    assert align(info((3,)), base((0,))) is None


def test_rows_that_the_base_lacks_are_zeros_and_rows_too_many_are_left_out() -> None:
    longer = align(info((10, 4), "F32"), base((8, 4)))
    assert longer is not None
    assert longer.segments == (
        BaseSegment(ID, DType.BF16, 0, 32),
        BaseSegment(ZERO_ID, DType.F32, 0, 8),
    )
    shorter = align(info((6, 4)), base((8, 4)))
    assert shorter == BasePlan((BaseSegment(ID, DType.BF16, 0, 24),), is_cast=False)


def test_a_name_that_safetensors_does_not_have_is_refused() -> None:
    assert coded_as("BF16") is DType.BF16
    assert coded_as("F4") is None
    with pytest.raises(InvalidInput, match="'F7' is not a safetensors element type"):
        coded_as("F7")


def test_ranges_are_joined_in_their_order_and_zeros_fill_the_rest() -> None:
    parts = [base((4, 3), fill=1), base((2, 3), "F32", fill=2), base((8, 3), fill=3)]
    plan = join(info((9, 3)), [(parts[0], 0, 12), (parts[1], 0, 6), (parts[2], 3, 6)])
    assert plan is not None
    assert [(segment.tensor[0], segment.start, segment.count) for segment in plan.segments] == [
        (1, 0, 12), (2, 0, 6), (3, 3, 6), (0, 0, 3),
    ]  # fmt: skip
    assert plan.is_cast
    assert plan.fault(OTHER, DType.BF16, 27) is None


def test_ranges_that_do_not_fit_are_not_joined() -> None:
    whole = base((8, 3))
    assert join(info((2, 3)), [(whole, 0, 9)]) is None  # more than the tensor has
    assert join(info((2, 3)), [(whole, 0, 0)]) is None
    assert join(info((2, 3), "I64"), [(whole, 0, 6)]) is None
    assert join(info((2, 3)), [(base((2, 3), "I16"), 0, 6)]) is None


def test_one_frames_part_of_a_plan_has_the_base_and_zeros_for_new_rows() -> None:
    plan = align(info((10, 4), "F32"), base((8, 4)))
    assert plan is not None
    inner = BaseSegment(ID, DType.BF16, 4, 28)
    assert slice_plan(plan, DType.F32, 4, 28).segments == (inner,)
    part = slice_plan(plan, DType.F32, 28, 12)
    assert part.segments == (
        BaseSegment(ID, DType.BF16, 28, 4),
        BaseSegment(ZERO_ID, DType.F32, 0, 8),
    )
    assert part.is_cast
    new_rows = slice_plan(plan, DType.F32, 33, 5)
    assert new_rows == BasePlan((BaseSegment(ZERO_ID, DType.F32, 0, 5),), is_cast=False)
    for start, count in ((0, 8), (30, 10), (32, 4)):
        assert slice_plan(plan, DType.F32, start, count).fault(OTHER, DType.F32, count) is None


# -- nearness ----------------------------------------------------------------------------------


def test_rounding_to_bf16_is_to_the_nearest() -> None:
    values = torch.tensor([1.0, 1.00390625, 1.01171875, -0.0, float("inf"), 3e38])
    expected = values.to(torch.bfloat16).view(torch.uint16).numpy()
    assert (to_bf16(DType.F32, values.numpy().tobytes()) == expected).all()


def test_nearness_tells_a_fine_tune_from_another_training() -> None:
    tensors = (tiny.base()[NAME], tiny.finetune(1e-4)[NAME], tiny.base(seed=1)[NAME])
    of, tuned, other = (to_bf16(DType.F32, raw(tensor)) for tensor in tensors)
    assert nearness(of, of) == 1
    assert nearness(of, tuned) > 0.7
    assert nearness(of, other) < 0.15
    zeros = to_bf16(DType.F32, raw(torch.tensor([0.0, -0.0])))
    assert nearness(zeros, zeros[::-1]) == 1


# -- the choice by a sample ----------------------------------------------------------------------


class Store:
    """Stored tensors by content id."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}

    def add(self, tensor: torch.Tensor, dtype: str = "F32") -> BaseTensor:
        data = raw(tensor)
        self.data[tensor_id(data)] = data
        return BaseTensor(NAME, dtype, tuple(tensor.shape), tensor_id(data))

    def read(self, tensor: bytes, first_byte: int, out: memoryview) -> None:
        out[:] = self.data[tensor][first_byte : first_byte + len(out)]


def search_for(tensor: torch.Tensor, store: Store, dtype: DType = DType.F32) -> BaseSearch:
    data = raw(tensor)

    def read(first_byte: int, out: memoryview) -> None:
        out[:] = data[first_byte : first_byte + len(out)]

    return BaseSearch(dtype, tensor.numel(), read, store.read)


def whole(tensor: torch.Tensor, of: BaseTensor, dtype: str = "F32") -> BasePlan:
    plan = align(TensorInfo(NAME, dtype, tuple(tensor.shape)), of)
    assert plan is not None
    return plan


def test_a_fine_tune_is_smaller_against_its_base() -> None:
    store, tuned = Store(), tiny.finetune(1e-5)[NAME]
    search = search_for(tuned, store)
    assert (search.best, search.ratio) == (None, search.standalone)
    plan = whole(tuned, store.add(tiny.base()[NAME]))
    assert search.offer(plan)
    assert search.best is plan
    assert search.ratio < 0.8 * search.standalone
    assert not search.pays_as_anchor()


def test_weights_of_another_training_are_no_base_whatever_they_save() -> None:
    store, tuned = Store(), tiny.finetune(1e-5)[NAME]
    search = search_for(tuned, store)
    assert not search.offer(whole(tuned, store.add(tiny.base(seed=1)[NAME])))
    assert search.best is None


def test_a_base_of_another_float_type_is_cast_before_it_is_tried() -> None:
    store, tuned = Store(), tiny.finetune(1e-5)[NAME].to(torch.bfloat16)
    search = search_for(tuned, store, DType.BF16)
    assert search.offer(whole(tuned, store.add(tiny.base()[NAME]), "BF16"))
    assert search.ratio < 0.5


@pytest.mark.parametrize("is_nearer_first", [True, False])
def test_the_smallest_delta_stays_in_whatever_order(is_nearer_first: bool) -> None:
    store, tuned = Store(), tiny.finetune(1e-5)[NAME]
    near = whole(tuned, store.add(tiny.base()[NAME]))
    far = whole(tuned, store.add(tiny.finetune(1e-3)[NAME]))
    search = search_for(tuned, store)
    taken = [search.offer(plan) for plan in ((near, far) if is_nearer_first else (far, near))]
    assert search.best is near
    assert taken == ([True, False] if is_nearer_first else [True, True])


def test_among_near_equals_the_first_stays() -> None:
    """The second base is nearer, but its delta is smaller by less than 2 %."""
    store, tuned = Store(), tiny.finetune(1e-5)[NAME]
    noise = torch.randn(tuned.shape, generator=torch.Generator().manual_seed(3))
    plans = [whole(tuned, store.add(tuned * (1 + each * noise))) for each in (0.01, 0.0098)]
    ratios = []
    for plan in plans:
        search = search_for(tuned, store)
        assert search.offer(plan)
        ratios.append(search.ratio)
    assert ratios[0] * (1 - MUST_BEAT) < ratios[1] < ratios[0]
    search = search_for(tuned, store)
    assert [search.offer(plan) for plan in plans] == [True, False]
    assert search.best is plans[0]


def quantized(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor / tensor.abs().max() * 127).round().to(torch.int8)


def test_integers_are_judged_by_size_alone() -> None:
    store, tuned = Store(), quantized(tiny.finetune(1e-5)[NAME])
    search = search_for(tuned, store, DType.I8)
    assert search.offer(whole(tuned, store.add(quantized(tiny.base()[NAME]), "I8"), "I8"))
    assert search.ratio < 0.9 * search.standalone


def test_a_base_that_saves_less_than_a_delta_must_is_not_taken() -> None:
    """Integers of an unrelated training save a thousandth of the bytes."""
    store, tuned = Store(), quantized(tiny.finetune(1e-5)[NAME])
    search = search_for(tuned, store, DType.I8)
    plan = whole(tuned, store.add(quantized(tiny.base(seed=1)[NAME]), "I8"), "I8")
    assert not search.offer(plan)
    assert (search.best, search.ratio) == (None, search.standalone)
    search.note_too_deep(plan)
    assert search.pays_as_anchor()  # because its delta does save something


def test_the_same_plan_is_read_once() -> None:
    store, tuned = Store(), tiny.finetune(1e-5)[NAME]
    plan = whole(tuned, store.add(tiny.base()[NAME]))
    search = search_for(tuned, store)
    assert search.offer(plan)
    store.data.clear()
    assert not search.offer(plan)
    assert search.best is plan


def test_a_base_that_cannot_be_read_passes_its_error_on_and_changes_nothing() -> None:
    store, tuned = Store(), tiny.finetune(1e-5)[NAME]
    kept = whole(tuned, store.add(tiny.finetune(1e-3)[NAME]))
    lost = store.add(tiny.base()[NAME])
    search = search_for(tuned, store)
    assert search.offer(kept)
    del store.data[lost.hash]
    for use in (search.offer, search.note_too_deep):
        with pytest.raises(KeyError):
            use(whole(tuned, lost))
    assert search.best is kept


def drifted(steps: int) -> Mapping[int, torch.Tensor]:
    """Revisions of one tensor; each replaces another sixteenth of its columns."""
    weight = tiny.base()[NAME].clone()
    revisions = {0: weight}
    width = weight.shape[1] // 16
    for step in range(steps):
        weight = weight.clone()
        columns = slice(step * width, (step + 1) * width)
        weight[:, columns] = tiny.base(seed=1)[NAME][:, columns]
        revisions[step + 1] = weight
    return revisions


@pytest.mark.parametrize(("step", "pays"), [(2, False), (8, True)])
def test_a_tensor_far_from_its_anchor_pays_as_the_next_one(step: int, pays: bool) -> None:
    """The depth limit allows only the first revision; the latest one is too deep."""
    revisions = drifted(step)
    store, tensor = Store(), revisions[step]
    search = search_for(tensor, store)
    search.note_too_deep(whole(tensor, store.add(revisions[step - 1])))
    assert search.best is None
    search.offer(whole(tensor, store.add(revisions[0])))
    assert search.pays_as_anchor() is pays


def test_without_a_base_that_is_too_deep_nothing_pays_as_an_anchor() -> None:
    revisions = drifted(3)
    store, tensor = Store(), revisions[3]
    search = search_for(tensor, store)
    search.offer(whole(tensor, store.add(revisions[0])))
    search.note_too_deep(whole(tensor, store.add(tiny.base(seed=2)[NAME])))  # unrelated
    assert not search.pays_as_anchor()

"""Tensors of another layout find their parts, or the tensor they are a part of, by their elements.

All weights were really trained.
"""

import pytest
import torch

from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_choice import BaseTensor, TensorInfo
from deltahub.codecs.frames.base_plan import BasePlan, ReadTensor, assemble, slice_plan
from deltahub.codecs.frames.layouts.search import (
    MAX_MISSES,
    MAX_SEARCHES,
    MIN_SEARCHES,
    LayoutSearch,
)
from deltahub.codecs.ids import tensor_id
from support.models import tiny_models as tiny

N_EXPERTS = 3
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def reader(tensor: torch.Tensor) -> ReadTensor:
    data = raw(tensor)

    def read(first: int, out: memoryview) -> None:
        out[:] = data[first : first + len(out)]

    return read


class Base:
    """Tensors by name; counts the reads."""

    def __init__(self, tensors: tiny.Tensors) -> None:
        self.n_reads = 0
        self.gone: set[bytes] = set()
        self._data = {tensor_id(raw(tensor)): raw(tensor) for tensor in tensors.values()}
        self.search = LayoutSearch(
            [
                BaseTensor(name, NAMES[t.dtype], tuple(t.shape), tensor_id(raw(t)))
                for name, t in tensors.items()
            ],
            self.read,
            unreadable=(LookupError,),
        )

    def read(self, tensor: bytes, first: int, out: memoryview) -> None:
        self.n_reads += 1
        if tensor in self.gone:
            raise LookupError(tensor)
        out[:] = self._data[tensor][first : first + len(out)]

    def find(self, name: str, tensor: torch.Tensor) -> list[BasePlan]:
        info = TensorInfo(name, NAMES[tensor.dtype], tuple(tensor.shape))
        return list(self.search.find(info, reader(tensor)))

    def assembled(self, plan: BasePlan, like: torch.Tensor) -> torch.Tensor:
        out = bytearray(like.numel() * like.itemsize)
        dtype = DType[NAMES[like.dtype]]
        assemble(plan, dtype, 0, like.numel(), self.read, memoryview(out))
        return torch.frombuffer(out, dtype=like.dtype).view(like.shape)


def experts(*, tuned: bool) -> list[torch.Tensor]:
    """Matrices of 192 x 384 that were trained apart from each other."""
    models = [tiny.finetune(1e-5, seed) if tuned else tiny.base(seed) for seed in range(N_EXPERTS)]
    return [model["up.weight"] for model in models]


def layered(*, tuned: bool, pattern: str = "layers.{}.{}_proj.weight") -> tiny.Tensors:
    """Two layers of q, k and v, with other matrices of the same width around them."""
    of_layers = [torch.split(each, [96, 48, 48]) for each in experts(tuned=tuned)[:2]]
    return {
        pattern.format(layer, part): rows
        for layer, parts in enumerate(of_layers)
        for part, rows in zip("qkv", parts, strict=True)
    }


def test_a_fused_tensor_is_its_parts_back_to_back() -> None:
    base = Base(layered(tuned=False) | {"layers.1.o_proj.weight": experts(tuned=False)[2]})
    for layer in range(2):
        fused = experts(tuned=True)[layer]
        (plan,) = base.find(f"model.layers.{layer}.attn.qkv.weight", fused)
        assert torch.equal(base.assembled(plan, fused), experts(tuned=False)[layer])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parts_are_cast(dtype: torch.dtype) -> None:
    base = Base(layered(tuned=False))
    fused = experts(tuned=True)[0].to(dtype)
    (plan,) = base.find("layers.0.qkv", fused)
    assert plan.is_cast
    assert torch.equal(base.assembled(plan, fused), experts(tuned=False)[0].to(dtype))


def test_names_need_not_say_anything() -> None:
    parts = layered(tuned=False)
    names = [f"w{number}" for number in (7, 3, 12, 9, 1, 5)]
    base = Base(dict(zip(names, parts.values(), strict=True)))
    (plan,) = base.find("fused", experts(tuned=True)[1])
    assert torch.equal(base.assembled(plan, experts(tuned=True)[1]), experts(tuned=False)[1])


def test_stacked_experts_are_found_in_their_order() -> None:
    names = [f"layers.0.experts.{e}.up_proj.weight" for e in range(N_EXPERTS)]
    base = Base(dict(zip(names, experts(tuned=False), strict=True)))
    stacked = torch.stack(experts(tuned=True))
    (plan,) = base.find("layers.0.experts.up_proj", stacked)
    assert torch.equal(base.assembled(plan, stacked), torch.stack(experts(tuned=False)))
    assert base.n_reads < 2 * N_EXPERTS + N_EXPERTS  # probes, then the parts themselves


def test_stacked_experts_whose_gate_and_up_are_fused_are_found() -> None:
    halves = {
        f"layers.0.experts.{e}.{part}.weight": rows
        for e, expert in enumerate(experts(tuned=False))
        for part, rows in zip(("w1", "w3"), torch.split(expert, 96), strict=True)
    }
    base = Base(halves)
    stacked = torch.stack(experts(tuned=True))
    (plan,) = base.find("layers.0.experts.gate_up_proj", stacked)
    assert torch.equal(base.assembled(plan, stacked), torch.stack(experts(tuned=False)))


def test_a_part_finds_its_rows_of_the_fused_tensor() -> None:
    base = Base({f"layers.{i}.c_attn.weight": each for i, each in enumerate(experts(tuned=False))})
    expected = layered(tuned=False)
    for name, part in layered(tuned=True).items():
        (plan,) = base.find(name, part)
        assert torch.equal(base.assembled(plan, part), expected[name])


def test_an_expert_finds_itself_among_the_stacked_ones() -> None:
    base = Base({"layers.0.experts.up_proj": torch.stack(experts(tuned=False))})
    for e, expert in enumerate(experts(tuned=True)):
        (plan,) = base.find(f"layers.0.experts.{e}.up_proj.weight", expert)
        assert torch.equal(base.assembled(plan, expert), experts(tuned=False)[e])
        gate, up = torch.split(expert, 96)
        for part, place in ((gate, 0), (up, 96)):
            (plan,) = base.find(f"layers.0.experts.{e}.proj.weight", part)
            assert plan.segments[0].start == (e * 192 + place) * 384


@pytest.mark.parametrize("count", [1, 3])
def test_transposed_matrices_are_found(count: int) -> None:
    names = [f"layers.0.experts.{e}.up_proj.weight" for e in range(N_EXPERTS)]
    base = Base(dict(zip(names, experts(tuned=False), strict=True)))
    tuned = torch.stack(experts(tuned=True)[:count]).mT.contiguous()
    expected = torch.stack(experts(tuned=False)[:count]).mT
    tensor = tuned if count > 1 else tuned[0]
    (plan,) = base.find("layers.0.experts.up_proj", tensor)
    assert plan.view is not None
    assert torch.equal(base.assembled(plan, tensor), expected.reshape(tensor.shape))


def test_a_square_matrix_finds_its_transpose() -> None:
    square = tiny.base()["up.weight"][:, :192].contiguous()
    tuned = tiny.finetune(1e-5)["up.weight"][:, :192].t().contiguous()
    base = Base({"w": square})
    (plan,) = base.find("w", tuned)
    assert torch.equal(base.assembled(plan, tuned), square.t())


def test_a_part_finds_itself_in_a_transposed_fused_matrix() -> None:
    base = Base({"layers.0.c_attn.weight": experts(tuned=False)[0].t().contiguous()})
    for part in ("q", "k", "v"):
        # The part's columns do not lie back to back in the transposed matrix.
        tuned = layered(tuned=True)[f"layers.0.{part}_proj.weight"]
        assert base.find(f"layers.0.{part}_proj.weight", tuned) == []


def test_fused_and_transposed_gate_and_up_of_stacked_experts_are_found() -> None:
    halves = {
        f"layers.0.experts.{e}.{part}.weight": rows
        for e, expert in enumerate(experts(tuned=False))
        for part, rows in zip(("w1", "w3"), torch.split(expert, 96), strict=True)
    }
    base = Base(halves)
    stacked = torch.stack(experts(tuned=True)).mT.contiguous()
    (plan,) = base.find("layers.0.experts.gate_up_proj", stacked)
    assert torch.equal(base.assembled(plan, stacked), torch.stack(experts(tuned=False)).mT)
    for dtype, itemsize in ((DType.F32, 4),):
        part = slice_plan(plan, dtype, 100_000, 50_000)
        assert part.fault(bytes(32), dtype, 50_000) is None
        out = bytearray(50_000 * itemsize)
        assemble(part, dtype, 0, 50_000, base.read, memoryview(out))
        whole = raw(torch.stack(experts(tuned=False)).mT)
        assert out == whole[400_000:600_000]


def test_vectors_are_joined_and_cut_as_well() -> None:
    biases = {f"{part}.bias": tiny.base(seed)["up.bias"] for seed, part in enumerate("qkv")}
    tuned = torch.cat([tiny.finetune(1e-5, seed)["up.bias"] for seed in range(3)])
    base = Base(biases)
    (plan,) = base.find("qkv.bias", tuned)
    assert torch.equal(base.assembled(plan, tuned), torch.cat(list(biases.values())))
    fused = Base({"qkv.bias": torch.cat(list(biases.values()))})
    (plan,) = fused.find("k.bias", tuned[192:384])
    assert torch.equal(fused.assembled(plan, tuned[192:384]), biases["k.bias"])


def test_rows_that_no_part_has_get_zeros() -> None:
    parts = layered(tuned=False)
    del parts["layers.0.v_proj.weight"]
    base = Base(parts)
    fused = experts(tuned=True)[0]
    (plan,) = base.find("layers.0.qkv.weight", fused)
    assembled = base.assembled(plan, fused)
    assert torch.equal(assembled[:144], experts(tuned=False)[0][:144])
    assert not assembled[144:].any()


def test_unrelated_weights_are_not_taken_and_soon_not_searched_any_more() -> None:
    base = Base(layered(tuned=False))
    unrelated = tiny.base(seed=N_EXPERTS)["up.weight"]
    for number in range(MIN_SEARCHES + 3):
        assert base.find(f"layers.{number}.other.weight", unrelated) == []
    n_reads = base.n_reads
    assert n_reads <= MAX_MISSES * MIN_SEARCHES
    assert base.find("layers.0.other.weight", experts(tuned=True)[0]) == []
    assert base.n_reads == n_reads
    assert base.find("layers.0.qkv.weight", experts(tuned=True)[0])  # of another kind
    for kind in range(MAX_SEARCHES):
        base.find(f"layers.0.{'x' * kind}.weight", unrelated)
    assert base.find("layers.0.last.weight", experts(tuned=True)[0]) == []
    assert base.find("layers.0.qkv.weight", experts(tuned=True)[0])


def test_a_base_that_cannot_be_read_is_left_out() -> None:
    parts = layered(tuned=False)
    base = Base(parts)
    base.gone.add(tensor_id(raw(parts["layers.0.q_proj.weight"])))
    assert base.find("layers.0.qkv.weight", experts(tuned=True)[0]) == []


@pytest.mark.parametrize("tensor", [torch.zeros(()), torch.zeros(3), torch.zeros(0, 384)])
def test_tensors_of_few_elements_are_not_searched(tensor: torch.Tensor) -> None:
    assert Base(layered(tuned=False)).find("w", tensor) == []


def test_integers_are_not_searched() -> None:
    search = Base(layered(tuned=False)).search
    read = reader(torch.zeros(192, 384, dtype=torch.int32))
    assert list(search.find(TensorInfo("w", "I32", (192, 384)), read)) == []
    assert list(search.find(TensorInfo("w", "F4", (192, 768)), read)) == []


def test_a_small_tensor_is_not_searched_everywhere_in_a_huge_one() -> None:
    whole = BaseTensor("w", "BF16", (1 << 40, 64), bytes(32))
    places: list[int] = []

    def read_base(_: bytes, first: int, out: memoryview) -> None:
        places.append(first)
        out[:] = bytes(len(out))

    search = LayoutSearch([whole], read_base)
    row = tiny.base()["up.weight"][0, :64].contiguous()
    assert list(search.find(TensorInfo("b", "F32", (64,)), reader(row))) == []
    assert len(places) == MAX_MISSES

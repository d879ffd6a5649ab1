"""Bases are found and chosen for tensors of trained models."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deltahub.registry import Caller, Registry
from support.models import tiny_models as tiny
from support.registry.ingested import Stored, push_ingested, read_file, stored_tensors
from support.registry.opened import caller, opened_registry

MATRICES = ("embedding.weight", "up.weight", "down.weight", "head.weight")


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, max_depth=2) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def push_model(
    reg: Registry, who: Caller, name: str, tensors: tiny.Tensors, base: str | None = None
) -> dict[str, Stored]:
    data = tiny.to_file(tensors)
    revision = push_ingested(reg, who, name, {"model.safetensors": data}, base=base)
    assert read_file(reg, revision, "model.safetensors") == data
    return stored_tensors(reg, revision)


@pytest.mark.parametrize("learning_rate", [1e-5, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_fine_tune_becomes_a_delta_of_its_declared_base(
    reg: Registry, ann: Caller, learning_rate: float, dtype: torch.dtype
) -> None:
    base = push_model(reg, ann, "ann/base", tiny.cast(tiny.base(), dtype))
    tensors = tiny.cast(tiny.finetune(learning_rate), dtype)
    made = push_model(reg, ann, "ann/tune", tensors, base="ann/base")
    for name in MATRICES:
        assert made[name].id == base[name].id or made[name].bases == {base[name].id}
        assert made[name].codec == ("fm_delta" if made[name].bases else base[name].codec)
        assert made[name].stored_bytes < 0.8 * base[name].stored_bytes or not made[name].bases


def test_a_fine_tune_whose_base_nobody_named_finds_it(reg: Registry, ann: Caller) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    push_model(reg, ann, "ann/other", tiny.base(seed=1))
    made = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5))
    for name in MATRICES:
        assert made[name].bases == {base[name].id}


def test_an_unrelated_base_that_was_declared_is_not_used(reg: Registry, ann: Caller) -> None:
    push_model(reg, ann, "ann/other", tiny.base(seed=1))
    made = push_model(reg, ann, "ann/model", tiny.base(), base="ann/other")
    for name in MATRICES:
        assert made[name].depth == 0
        assert made[name].stored_bytes <= made[name].size + 256


def test_the_right_base_is_found_although_a_wrong_one_was_declared(
    reg: Registry, ann: Caller
) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    push_model(reg, ann, "ann/other", tiny.base(seed=1))
    made = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="ann/other")
    for name in MATRICES:
        assert made[name].bases == {base[name].id}


def test_a_bf16_fine_tune_is_a_delta_of_its_f32_base(reg: Registry, ann: Caller) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    made = push_model(reg, ann, "ann/tune", tiny.cast(tiny.finetune(1e-5), torch.bfloat16))
    for name in MATRICES:
        assert made[name].bases == {base[name].id}
        assert made[name].stored_bytes < 0.5 * made[name].size


def test_a_plain_cast_of_the_base_costs_next_to_nothing(reg: Registry, ann: Caller) -> None:
    push_model(reg, ann, "ann/base", tiny.base())
    made = push_model(reg, ann, "ann/half", tiny.cast(tiny.base(), torch.bfloat16))
    for name in MATRICES:
        assert made[name].stored_bytes < 0.05 * made[name].size


def test_appended_vocabulary_rows_stay_a_delta(reg: Registry, ann: Caller) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    longer = tiny.with_more_rows(tiny.finetune(1e-5), 16)
    made = push_model(reg, ann, "ann/longer", longer, base="ann/base")
    for name in MATRICES:
        assert made[name].bases == {base[name].id}


def test_removed_vocabulary_rows_stay_a_delta(reg: Registry, ann: Caller) -> None:
    longer = push_model(reg, ann, "ann/longer", tiny.with_more_rows(tiny.base(), 16))
    made = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="ann/longer")
    for name in MATRICES:
        assert made[name].bases == {longer[name].id}


@pytest.mark.parametrize("prefix", ["model.", "transformer.wrapped."])
def test_renamed_tensors_find_their_bases(reg: Registry, ann: Caller, prefix: str) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    made = push_model(reg, ann, "ann/tune", tiny.renamed(tiny.finetune(1e-5), prefix))
    for name in MATRICES:
        assert made[prefix + name].bases == {base[name].id}


def test_tensors_under_wholly_other_names_find_their_bases(reg: Registry, ann: Caller) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    tensors = {f"w{i}": tensor for i, tensor in enumerate(tiny.finetune(1e-5).values())}
    names = dict(zip(tensors, tiny.base(), strict=True))
    made = push_model(reg, ann, "ann/tune", tensors, base="ann/base")
    for new, old in names.items():
        if old in MATRICES:
            assert made[new].bases == {base[old].id}


def test_a_fused_projection_is_a_delta_of_its_parts(reg: Registry, ann: Caller) -> None:
    tune = tiny.finetune(1e-5)["up.weight"]
    parts = dict(zip("qkv", torch.split(tiny.base()["up.weight"], [96, 48, 48]), strict=True))
    split = {f"a.{part}_proj.weight": rows for part, rows in parts.items()}
    base = push_model(reg, ann, "ann/split", split)
    made = push_model(reg, ann, "ann/fused", {"a.qkv_proj.weight": tune}, base="ann/split")
    assert made["a.qkv_proj.weight"].bases == {stored.id for stored in base.values()}


def test_parts_are_deltas_of_the_fused_projection(reg: Registry, ann: Caller) -> None:
    fused = {"a.qkv_proj.weight": tiny.base()["up.weight"]}
    base = push_model(reg, ann, "ann/fused", fused)
    parts = dict(
        zip("qkv", torch.split(tiny.finetune(1e-5)["up.weight"], [96, 48, 48]), strict=True)
    )
    split = {f"a.{part}_proj.weight": rows for part, rows in parts.items()}
    made = push_model(reg, ann, "ann/split", split, base="ann/fused")
    for stored in made.values():
        assert stored.bases == {base["a.qkv_proj.weight"].id}


def test_a_sharded_fine_tune_is_a_delta_of_one_file_and_the_reverse(
    reg: Registry, ann: Caller
) -> None:
    names = list(tiny.base())

    def push_shards(name: str, tensors: tiny.Tensors, base: str | None) -> dict[str, Stored]:
        parts = [{each: tensors[each] for each in some} for some in (names[:2], names[2:])]
        files = {f"model-{i}-of-2.safetensors": tiny.to_file(part) for i, part in enumerate(parts)}
        revision = push_ingested(reg, ann, name, files, base=base)
        assert all(read_file(reg, revision, path) == data for path, data in files.items())
        return stored_tensors(reg, revision)

    whole = push_model(reg, ann, "ann/whole", tiny.base())
    shards = push_shards("ann/shards", tiny.finetune(1e-5), "ann/whole")
    again = push_model(reg, ann, "ann/again", tiny.finetune(1e-4), base="ann/shards")
    for name in MATRICES:
        assert shards[name].bases == {whole[name].id}
        assert again[name].bases <= {whole[name].id, shards[name].id} != set()


def test_a_head_that_is_tied_or_missing_leaves_the_rest_a_delta(reg: Registry, ann: Caller) -> None:
    """A head that is no longer tied becomes a delta of the embedding that it was tied to."""
    headless = {name: tensor for name, tensor in tiny.base().items() if name != "head.weight"}
    base = push_model(reg, ann, "ann/base", headless)
    untied = dict(tiny.finetune(1e-5))
    untied["head.weight"] = tiny.finetune(1e-4)["embedding.weight"]
    made = push_model(reg, ann, "ann/untied", untied, base="ann/base")
    for name in MATRICES:
        origin = "embedding.weight" if name == "head.weight" else name
        assert made[name].bases == {base[origin].id}

    tied = {**untied, "head.weight": untied["embedding.weight"].clone()}
    twice = push_model(reg, ann, "ann/tied", tied, base="ann/base")
    assert twice["head.weight"] == twice["embedding.weight"] == made["embedding.weight"]


def test_kernels_of_convolutions_are_deltas_and_counters_come_back(
    reg: Registry, ann: Caller
) -> None:
    before, after = tiny.convolutions()
    base = push_model(reg, ann, "ann/base", before)
    made = push_model(reg, ann, "ann/tune", after, base="ann/base")
    assert after["norm.num_batches_tracked"].shape == torch.Size([])
    assert after["second.weight"].dim() == 4
    assert made["second.weight"].codec == "fm_delta"
    assert made["second.weight"].bases == {base["second.weight"].id}


def test_a_tensor_without_elements_among_trained_ones_comes_back(
    reg: Registry, ann: Caller
) -> None:
    """As of a vocabulary extension of zero rows: only the file's header names the tensor."""
    empty = {"added.weight": torch.zeros(0, tiny.WIDTH), "none": torch.zeros(4, 0)}
    base = push_model(reg, ann, "ann/base", tiny.base() | empty)
    made = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5) | empty, base="ann/base")
    assert base.keys() == made.keys() == tiny.base().keys()  # push_model compared the files' bytes
    for name in MATRICES:
        assert made[name].bases == {base[name].id}


KINDS = {
    "F64": lambda tensor: tensor.double() * math.pi,  # a plain cast leaves 29 zero bits
    "F8_E4M3": lambda tensor: tensor.to(torch.float8_e4m3fn),
    "F8_E5M2": lambda tensor: tensor.to(torch.float8_e5m2),
    "I8": lambda tensor: (tensor / tensor.abs().max() * 127).round().to(torch.int8),
    "U8": lambda tensor: (tensor / tensor.abs().max() * 127 + 128).round().to(torch.uint8),
    "I64": lambda tensor: (tensor * 2**20).long(),
    "BOOL": lambda tensor: tensor.abs() > tensor.abs().median(),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_trained_weights_of_other_kinds_are_deltas(reg: Registry, ann: Caller, kind: str) -> None:
    """Doubles, quantized weights, masks and counters, with odd numbers of rows and columns."""
    convert = KINDS[kind]
    odd = slice(0, 191), slice(0, 383)
    before = {"up.weight": convert(tiny.base()["up.weight"][odd])}
    after = {"up.weight": convert(tiny.finetune(1e-5)["up.weight"][odd])}
    base = push_model(reg, ann, "ann/base", before)
    made = push_model(reg, ann, "ann/tune", after, base="ann/base")
    assert made["up.weight"].bases == {base["up.weight"].id}
    assert made["up.weight"].stored_bytes < 0.9 * base["up.weight"].stored_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_words_that_are_no_numbers_leave_the_rest_a_delta(
    reg: Registry, ann: Caller, dtype: torch.dtype
) -> None:
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-39, -6e-8])
    before = {"up.weight": tiny.base()["up.weight"].to(dtype, copy=True)}
    after = {"up.weight": tiny.finetune(1e-5)["up.weight"].to(dtype, copy=True)}
    before["up.weight"].view(-1)[5:700:100] = special.to(dtype)
    after["up.weight"].view(-1)[5:705:50] = special.repeat(2).to(dtype)
    base = push_model(reg, ann, "ann/base", before)
    made = push_model(reg, ann, "ann/tune", after, base="ann/base")
    assert made["up.weight"].bases == {base["up.weight"].id}
    assert made["up.weight"].stored_bytes < 0.9 * base["up.weight"].stored_bytes


def test_a_chain_of_revisions_stays_within_the_depth(reg: Registry, ann: Caller) -> None:
    tensors = tiny.base()
    for step in range(5):
        made = push_model(reg, ann, "ann/model", tensors)
        depth = max(stored.depth for stored in made.values())
        assert depth == step if step <= 2 else 0 < depth <= 2
        generator = torch.Generator().manual_seed(step)
        tensors = {
            name: tensor * (1 + 1e-4 * torch.randn(tensor.shape, generator=generator))
            for name, tensor in tensors.items()
        }


def test_a_chain_that_drifts_from_its_anchor_begins_a_new_one(reg: Registry, ann: Caller) -> None:
    """Each revision replaces other rows, so the distance to the anchor grows steadily."""
    weight, depths = tiny.base()["up.weight"].clone(), []
    for step in range(7):
        made = push_model(reg, ann, "ann/model", {"up.weight": weight})
        depths.append(made["up.weight"].depth)
        weight = weight.clone()
        weight[step * 30 : step * 30 + 30] = tiny.base(seed=1)["up.weight"][step * 30 :][:30]
    assert depths[:3] == [0, 1, 2]
    assert 0 in depths[3:]


def test_a_private_base_of_another_namespace_is_not_used(reg: Registry, ann: Caller) -> None:
    bob = caller(reg, "bob")
    data = tiny.to_file(tiny.base())
    push_ingested(reg, bob, "bob/secret", {"model.safetensors": data}, private=True)
    made = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="bob/secret")
    assert {stored.depth for stored in made.values()} == {0}


def test_a_private_fine_tune_may_use_a_public_base_but_not_the_reverse(
    reg: Registry, ann: Caller
) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    data = tiny.to_file(tiny.finetune(1e-5))
    private = push_ingested(reg, ann, "ann/mine", {"model.safetensors": data}, private=True)
    made = stored_tensors(reg, private)
    assert all(made[name].bases == {base[name].id} for name in MATRICES)

    data = tiny.to_file(tiny.base(seed=1))
    push_ingested(reg, ann, "ann/hidden", {"model.safetensors": data}, private=True)
    public = push_model(reg, ann, "ann/open", tiny.finetune(1e-5, seed=1), base="ann/hidden")
    assert {stored.depth for stored in public.values()} == {0}

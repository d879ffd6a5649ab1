"""Bases are found and chosen on really trained models."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deltahub.registry import Caller, Registry
from support import tiny_models as tiny
from support.ingested import Stored, push_ingested, read_file, stored_tensors
from support.registry import caller, opened_registry

MATRICES = ("embedding.weight", "up.weight", "down.weight", "head.weight")


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
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


def test_a_chain_of_revisions_stays_within_the_depth(reg: Registry, ann: Caller) -> None:
    tensors = tiny.base()
    for step in range(5):
        made = push_model(reg, ann, "ann/model", tensors)
        assert max(stored.depth for stored in made.values()) == min(step, 2)
        generator = torch.Generator().manual_seed(step)
        tensors = {
            name: tensor * (1 + 1e-4 * torch.randn(tensor.shape, generator=generator))
            for name, tensor in tensors.items()
        }


def test_a_chain_that_drifts_from_its_anchor_begins_a_new_one(reg: Registry, ann: Caller) -> None:
    """Every revision trains other rows, so that the distance to the anchor grows without end."""
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

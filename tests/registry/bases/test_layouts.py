"""Fine-tunes in another layout than their base: stored as deltas, read back, and kept readable."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import delete_repository
from support.models import tiny_models as tiny
from support.models.layouts import fp8, fused, stacked, stacked_and_transposed, trained, transposed
from support.models.tiny_models import Tensors
from support.registry.collecting import age_everything, collect, is_clean
from support.registry.ingested import (
    push_ingested,
    read_file,
    run_replans,
    send_ingested,
    stored_tensors,
)
from support.registry.opened import caller, opened_registry

Layout = Callable[[Tensors], Tensors]


def split(tensors: Tensors) -> Tensors:
    return tensors


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def file_of(tensors: Tensors) -> bytes:
    return tiny.to_file(tensors)


def stored_bytes(reg: Registry, revision: int) -> int:
    return sum(tensor.stored_bytes for tensor in stored_tensors(reg, revision).values())


@pytest.mark.parametrize("base", [None, "ann/base"])
@pytest.mark.parametrize(
    ("of_base", "of_tune"),
    [
        (split, fused),
        (split, stacked),
        (fused, split),
        (stacked, split),
        (split, transposed),
        (transposed, split),
        (split, stacked_and_transposed),
        (split, fp8),
        (fused, fp8),
    ],
)
def test_every_tensor_is_a_delta_and_takes_what_it_takes_in_the_layout_of_the_base(
    reg: Registry, ann: Caller, of_base: Layout, of_tune: Layout, base: str | None
) -> None:
    push_ingested(reg, ann, "ann/base", {"model.safetensors": file_of(of_base(trained()))})
    tuned = trained(1e-5)
    same = {"model.safetensors": file_of(of_base(tuned))}
    in_same_layout = push_ingested(reg, ann, "ann/same", same, base=base)
    data = file_of(of_tune(tuned))
    # As if it had been pushed alone: the fine-tune of the same layout would be the nearest base.
    files = {"model.safetensors": data}
    revision = push_ingested(reg, ann, "ann/tune", files, base=base or "ann/base")
    made = stored_tensors(reg, revision)
    assert all(tensor.bases for tensor in made.values() if tensor.size > 1024)
    assert stored_bytes(reg, revision) <= 1.2 * stored_bytes(reg, in_same_layout)
    assert read_file(reg, revision, "model.safetensors") == data
    assert is_clean(reg)


@pytest.mark.parametrize("layout", [stacked, transposed, fp8])
def test_a_fine_tune_of_another_layout_stays_readable_when_its_base_is_deleted(
    reg: Registry, ann: Caller, layout: Layout
) -> None:
    push_ingested(reg, ann, "ann/base", {"model.safetensors": file_of(trained())})
    data = file_of(layout(trained(1e-5)))
    revision = push_ingested(reg, ann, "ann/tune", {"model.safetensors": data}, base="ann/base")
    made = stored_tensors(reg, revision)
    assert all(tensor.bases for tensor in made.values() if tensor.size > 1024)
    delete_repository(reg, ann, "ann/base")
    age_everything(reg, 40)
    collect(reg)
    age_everything(reg, 40)
    collect(reg)
    assert read_file(reg, revision, "model.safetensors") == data
    assert is_clean(reg)


def test_a_fine_tune_that_came_first_is_planned_again_once_its_base_is_there(
    reg: Registry, ann: Caller
) -> None:
    data = file_of(fused(trained(1e-5)))
    revision = send_ingested(reg, ann, "ann/tune", data, base="ann/base")
    assert not any(tensor.bases for tensor in stored_tensors(reg, revision).values())
    push_ingested(reg, ann, "ann/base", {"model.safetensors": file_of(trained())})
    assert run_replans(reg) > 0
    made = stored_tensors(reg, revision)
    assert len(made["layers.0.self_attn.qkv_proj.weight"].bases) == 3
    assert all(tensor.bases for tensor in made.values())
    assert read_file(reg, revision, "model.safetensors") == data
    assert is_clean(reg)

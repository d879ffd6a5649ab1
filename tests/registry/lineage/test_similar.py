"""Sketches find relatives and no strangers, only in domains that the owner may read."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, select

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Sketch
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.lineage.model_sketch import sketch_revision
from deltahub.registry.lineage.similar import MAX_FAMILIES, find_families
from deltahub.registry.lineage.target import Target
from deltahub.registry.lineage.tensor_sketch import (
    Sketchable,
    TensorSketch,
    choose,
    similarity,
    sketch,
)
from support.models import tiny_models as tiny
from support.registry.ingested import ingest, push_ingested
from support.registry.opened import caller, opened_registry, push


def sketchable(name: str, tensor: torch.Tensor, dtype: str = "F32") -> Sketchable:
    data = memoryview(tensor.contiguous().view(torch.uint8).numpy().tobytes())

    def read(first_byte: int, out: memoryview) -> None:
        out[:] = data[first_byte : first_byte + out.nbytes]

    return Sketchable(name, dtype, tuple(tensor.shape), read)


def sketch_of(tensor: torch.Tensor, dtype: str = "F32") -> TensorSketch:
    made = sketch(sketchable("w", tensor, dtype))
    assert made is not None
    return made


@pytest.mark.parametrize("learning_rate", [1e-5, 1e-4])
def test_a_fine_tune_is_near_its_base_and_far_from_a_stranger(learning_rate: float) -> None:
    for name in ("embedding.weight", "up.weight", "head.weight"):
        base = sketch_of(tiny.base()[name])
        assert similarity(base, sketch_of(tiny.finetune(learning_rate)[name])) > 0.6
        assert similarity(base, sketch_of(tiny.base(seed=1)[name])) < 0.3


def test_a_cast_has_the_sketch_of_the_original() -> None:
    weight = tiny.base()["up.weight"]
    in_f32 = sketch_of(weight)
    in_bf16 = sketch_of(weight.to(torch.bfloat16), "BF16")
    in_f16 = sketch_of(weight.to(torch.float16), "F16")
    assert (in_f32.positions == in_bf16.positions).all()
    assert similarity(in_f32, in_f16) == 1.0


def test_appended_rows_move_no_position() -> None:
    longer = tiny.with_more_rows(tiny.base(), 5)["embedding.weight"]
    assert (
        sketch_of(tiny.base()["embedding.weight"]).positions == sketch_of(longer).positions
    ).all()


def test_a_tensor_that_is_all_alike_has_no_sketch() -> None:
    assert sketch(sketchable("norm", torch.ones(8192))) is None


def test_the_choice_is_the_same_whatever_the_order() -> None:
    tensors = [sketchable(name, t) for name, t in tiny.base().items()]
    chosen = [t.name for t in choose(tensors)]
    assert chosen == [t.name for t in choose(reversed(tensors))]
    assert chosen[0] == "up.weight"
    assert all(tiny.base()[name].numel() >= 4096 for name in chosen)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 0xFFFF), min_size=64, max_size=64))
def test_sketches_survive_their_bytes(words: list[int]) -> None:
    made = TensorSketch("1x4096", np.array(words, dtype=np.uint16))
    again = TensorSketch.from_bytes("1x4096", made.to_bytes())
    assert (again.positions == made.positions).all()
    assert again.bands == made.bands
    assert similarity(made, again) == 1.0


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def families_of(reg: Registry, revision: int) -> list[int]:
    sketches = sketch_revision(reg, FileReader(reg), revision)
    with reg.db.read() as session:
        target = Target.load(session, revision)
        found = find_families(
            session, sketches, target.domains, exclude_repository=target.repository_id
        )
    return [family.revision_id for family in found]


def push_model(
    reg: Registry, pusher: Caller, name: str, tensors: tiny.Tensors, *, private: bool = False
) -> int:
    files = {"model.safetensors": tiny.to_file(tensors)}
    return push_ingested(reg, pusher, name, files, private=private)


def test_a_lookup_finds_the_family_and_no_stranger(reg: Registry, ann: Caller) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    push_model(reg, ann, "ann/stranger", tiny.base(seed=1))
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5))
    assert families_of(reg, tune) == [base]


def test_at_most_five_families_come_back(reg: Registry, ann: Caller) -> None:
    for number in range(MAX_FAMILIES + 2):
        noise = torch.Generator().manual_seed(number)
        tensors = {
            name: tensor * (1 + 1e-4 * torch.randn(tensor.shape, generator=noise))
            for name, tensor in tiny.base().items()
        }
        push_model(reg, ann, f"ann/m{number}", tensors)
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5))
    assert len(families_of(reg, tune)) == MAX_FAMILIES


def test_private_models_are_seen_in_their_own_namespace_alone(reg: Registry, ann: Caller) -> None:
    bob = caller(reg, "bob")
    base = push_model(reg, ann, "ann/base", tiny.base(), private=True)
    strange = push_model(reg, bob, "bob/tune", tiny.finetune(1e-5), private=True)
    public = push_model(reg, ann, "ann/public", tiny.finetune(1e-4))
    own = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), private=True)
    assert base in families_of(reg, own)
    assert families_of(reg, public) == []
    assert base not in families_of(reg, strange)


def test_a_stored_model_is_sketched_like_its_upload_without_a_look_up_for_each_place(
    reg: Registry, ann: Caller
) -> None:
    files = {"model.safetensors": tiny.to_file(tiny.finetune(1e-5))}
    job_id = push(reg, ann, "ann/tune", files, base=None).job_id
    assert job_id is not None
    landed = sketch_revision(reg, FileReader(reg), 1)
    ingest(reg, 1, job_id)
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    with reg.db.read() as session:
        event.listen(session.get_bind(), "before_cursor_execute", note)
    stored = sketch_revision(reg, FileReader(reg), 1)
    assert len(stored) > 2
    assert [each.to_bytes() for each in stored] == [each.to_bytes() for each in landed]
    # Fewer queries than one for each of the 16 places of a tensor.
    assert len(statements) < 16 * len(stored)


def test_every_sketched_tensor_has_all_its_bands(reg: Registry, ann: Caller) -> None:
    push_model(reg, ann, "ann/base", tiny.base())
    with reg.db.read() as session:
        counts = session.scalars(select(func.count(Sketch.band)).group_by(Sketch.tensor_id)).all()
    assert counts
    assert set(counts) == {16}

"""A file is always split in the same way, and its recipe gives back every byte."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from deltahub.codecs import (
    DType,
    FilePlan,
    InvalidInput,
    Literal,
    Recipe,
    make_recipe,
    plan_file,
    tensor_id,
)

MIB = 1 << 20


def plan_of(data: bytes, name: str) -> FilePlan:
    return plan_file(lambda offset, length: data[offset : offset + length], len(data), name)


def recipe_of(data: bytes, name: str) -> tuple[Recipe, dict[bytes, bytes]]:
    plan = plan_of(data, name)
    tensors = [data[piece.start : piece.end] for piece in plan.tensor_pieces()]
    ids = [tensor_id(tensor) for tensor in tensors]
    sha256 = hashlib.sha256(data).digest()
    recipe = make_recipe(plan, sha256, ids, lambda offset, n: data[offset : offset + n])
    return recipe, dict(zip(ids, tensors, strict=True))


def rebuilt(recipe: Recipe, tensors: dict[bytes, bytes]) -> bytes:
    return b"".join(
        segment.data if isinstance(segment, Literal) else tensors[segment.tensor]
        for segment in recipe.segments
    )


def check(data: bytes, name: str) -> Recipe:
    recipe, tensors = recipe_of(data, name)
    assert rebuilt(recipe, tensors) == data
    assert Recipe.from_bytes(recipe.to_bytes()) == recipe
    assert recipe_of(data, name)[0].id == recipe.id
    return recipe


@given(data=st.binary(max_size=3000), name=st.sampled_from(["a.bin", "a.safetensors", ""]))
def test_any_file_comes_back_from_its_recipe(data: bytes, name: str) -> None:
    assert check(data, name).kind == "opaque"


@given(
    shapes=st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=6),
    padding=st.integers(0, 2000),
    trailing=st.integers(0, 2000),
)
def test_a_safetensors_file_comes_back_with_padding_and_trailing_bytes(
    shapes: list[list[int]], padding: int, trailing: int
) -> None:
    file = save({f"t{i}": np.full(shape, i, "<f4") for i, shape in enumerate(shapes)})
    length = int.from_bytes(file[:8], "little")
    head = (length + padding).to_bytes(8, "little") + file[8 : 8 + length] + b" " * padding
    data = head + file[8 + length :] + b"x" * trailing
    recipe = check(data, "model.safetensors")
    assert recipe.kind == "safetensors"
    names = [segment.name for segment in recipe.tensors() if segment.name is not None]
    assert sorted(names) == [f"t{i}" for i, shape in enumerate(shapes) if 0 not in shape]


def test_an_opaque_file_is_cut_in_16_mib_chunks() -> None:
    plan = plan_of(bytes(33 * MIB), "pytorch_model.bin")
    assert [piece.size for piece in plan.pieces] == [16 * MIB, 16 * MIB, MIB]
    assert not any(piece.is_literal for piece in plan.pieces)
    spec = plan.pieces[2].spec(bytes(32))
    assert (spec.dtype, spec.rows, spec.columns) == (DType.U8, 1, MIB)


@pytest.mark.parametrize(("size", "is_literal"), [(1, True), (1024, True), (1025, False)])
def test_up_to_1_kib_lies_in_the_recipe_itself(size: int, is_literal: bool) -> None:
    (piece,) = plan_of(bytes(size), "config.json").pieces
    assert (piece.is_literal, piece.size) == (is_literal, size)


def test_an_empty_file_has_no_pieces() -> None:
    assert plan_of(b"", "empty").pieces == ()
    assert plan_of(b"", "empty.safetensors").note == "a file of 0 bytes has no safetensors header"


def test_a_safetensors_name_with_other_contents_is_opaque_and_says_why() -> None:
    plan = plan_of(b"\xff" * 5000, "model.safetensors")
    assert plan.kind == "opaque"
    assert plan.note is not None
    assert "18446744073709551615" in plan.note


def test_a_safetensors_file_of_another_name_is_opaque() -> None:
    assert plan_of(save({"a": np.zeros(3)}), "model.bin").kind == "opaque"


def test_tensors_keep_the_shape_and_dtype_of_the_file() -> None:
    data = save({"w": np.zeros((3, 4, 5), "<f2"), "s": np.zeros((), "<i8")})
    recipe = check(data, "m.safetensors")
    assert {(ref.name, ref.dtype, ref.shape) for ref in recipe.tensors()} == {
        ("w", "F16", (3, 4, 5)),
        ("s", "I64", ()),
    }
    pieces = {piece.name: piece for piece in plan_of(data, "m.safetensors").tensor_pieces()}
    spec = pieces["w"].spec(bytes(32))
    assert (spec.dtype, spec.rows, spec.columns) == (DType.F16, 3, 20)


def test_only_the_header_is_read_to_plan() -> None:
    data = save({"w": np.zeros(100_000, "<f4")})
    header = 8 + int.from_bytes(data[:8], "little")
    ends: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        ends.append(offset + length)
        return data[offset : offset + length]

    plan_file(read_at, len(data), "w.safetensors")
    assert max(ends) == header


def test_a_recipe_needs_one_id_a_tensor() -> None:
    plan = plan_of(bytes(5000), "a.bin")
    with pytest.raises(InvalidInput):
        make_recipe(plan, bytes(32), [], lambda offset, length: bytes(length))

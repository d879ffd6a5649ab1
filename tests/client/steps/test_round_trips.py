"""Any tensors, in any layout in memory, through memory and files of a step, by property."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from deltahub.client.errors import InvalidArgument
from deltahub.client.steps import layout
from deltahub.client.steps.layout import files_of, index_of
from deltahub.client.steps.memory import HeldStep, empty_bytes, hold
from deltahub.client.steps.tensors import as_tensors, given_tensors

_TORCH = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32",
    "int16", "int8", "uint8", "bool", "complex64",
)  # fmt: skip
_NUMPY = ("<f4", ">f4", "<f2", "<i8", ">u2", "?", "<c8")
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def _torch_tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(1, 7), max_size=3))
    dtype = getattr(torch, draw(st.sampled_from(_TORCH)))
    size = torch.empty(0, dtype=dtype).element_size()
    count = int(np.prod(shape, dtype=int)) * 2
    data = draw(st.binary(min_size=count * size, max_size=count * size))
    if dtype is torch.bool:
        data = bytes(byte & 1 for byte in data)
    flat = torch.frombuffer(bytearray(data), dtype=dtype)
    made = flat.reshape([2, *shape])[draw(st.integers(0, 1))]
    return made.transpose(0, -1) if made.dim() > 1 and draw(st.booleans()) else made


@st.composite
def _numpy_arrays(draw: st.DrawFn) -> Any:
    dtype = np.dtype(draw(st.sampled_from(_NUMPY)))
    shape = draw(st.lists(st.integers(1, 7), max_size=3))
    count = int(np.prod(shape, dtype=int)) * 2
    data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    array = np.frombuffer(data, dtype)[:: draw(st.sampled_from((1, 2)))][: count // 2]
    return array.reshape(shape, order=draw(st.sampled_from("CF")))


_TENSORS = st.dictionaries(
    _NAMES, st.one_of(_torch_tensors(), _numpy_arrays()), min_size=1, max_size=5
)


def _bytes(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        return value.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return np.ascontiguousarray(value).astype(value.dtype.newbyteorder("=")).tobytes()


@settings(deadline=None)
@given(_TENSORS)
def test_tensors_come_back_with_their_shapes_and_bits(tensors: dict[str, Any]) -> None:
    if "__metadata__" in tensors:
        return
    held = hold(given_tensors(tensors), None, 1)
    found = as_tensors(held, "torch")
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert tuple(found[name].shape) == tuple(value.shape)
        assert _bytes(found[name]) == _bytes(value)
        assert held[name].is_right()


@settings(deadline=None, max_examples=40)
@given(_TENSORS)
def test_the_files_of_a_step_are_what_the_safetensors_library_reads(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Any]
) -> None:
    if "__metadata__" in tensors:
        return
    held = hold(given_tensors(tensors), None, 1)
    (file,) = files_of(held.values())
    path = tmp_path_factory.mktemp("step") / file.path
    path.write_bytes(file.header + b"".join(each.data.tobytes() for each in file.tensors))
    assert path.stat().st_size == file.size
    found = load_file(path)
    assert {name: _bytes(each) for name, each in found.items()} == {
        name: _bytes(each) for name, each in tensors.items()
    }
    parts = file.parts(file.plan())
    assert len(parts) == len(file.plan().tensor_pieces())


def test_a_large_step_has_several_files_and_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MAX_FILE_BYTES", 1000)
    tensors = {f"t{i}": np.full(60, i, np.float32) for i in range(10)}
    files = files_of(hold(given_tensors(tensors), None, 1).values())
    assert [Path(file.path).name for file in files] == [
        f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    assert sum(len(file.tensors) for file in files) == 10
    assert all(sum(each.size for each in file.tensors) <= 1000 for file in files)
    assert index_of(files) is not None
    assert index_of(files[:1]) is None


def test_what_has_not_changed_keeps_its_memory_and_the_rest_is_copied() -> None:
    tensors = {"a": torch.ones(3000), "b": torch.ones(3000)}
    first = HeldStep(0, "", hold(given_tensors(tensors), None, 2))
    tensors["b"][-1] = 2
    second = hold(given_tensors(tensors), first, 2)
    assert second["a"] is first.tensors["a"]
    assert second["b"].tensor != first.tensors["b"].tensor
    tensors["b"].zero_()
    assert second["b"].is_right()
    assert first.tensors["b"].is_right()


def test_a_tensor_that_finds_no_memory_is_an_error_that_says_so() -> None:
    with pytest.raises(
        InvalidArgument, match="no memory for a tensor of 1152921504606846976 bytes"
    ):
        empty_bytes(1 << 60)

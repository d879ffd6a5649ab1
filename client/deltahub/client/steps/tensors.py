"""Tensors of torch and numpy as bytes with a safetensors dtype, and back."""

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from deltahub.client.errors import InvalidArgument
from deltahub.client.steps.memory import Bytes, HeldTensor, NewTensor

if TYPE_CHECKING:
    import torch

Framework = Literal["torch", "numpy"]

# torch and numpy (with ml_dtypes) have the same names for element types.
_SAFETENSORS: Final = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "complex64": "C64",
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in _SAFETENSORS.items()}
# More would make a header that hubs do not take.
MAX_TENSORS: Final = 100_000
_MAX_NAME: Final = 1000


def given_tensors(tensors: Mapping[str, Any]) -> Iterator[NewTensor]:
    """The tensors that a caller gave us, one at a time: those of a GPU are copied from it.

    InvalidArgument if there are none or too many, or one is no tensor that safetensors can hold.
    """
    if not isinstance(tensors, Mapping):
        raise InvalidArgument(
            f"tensors is a mapping of names to tensors, such as a state_dict, not {type(tensors)}"
        )
    if not tensors:
        raise InvalidArgument("a step without tensors: give a mapping of names to tensors")
    if len(tensors) > MAX_TENSORS:
        raise InvalidArgument(
            f"a step of {len(tensors)} tensors; at most {MAX_TENSORS} are allowed"
        )
    for name in tensors:
        _check_name(name)
    return (_given(name, tensors[name]) for name in tensors)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or len(name) > _MAX_NAME or name == "__metadata__":
        raise InvalidArgument(f"{name!a:.80} is not the name of a tensor: 1 to {_MAX_NAME} letters")
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InvalidArgument(f"{name!a:.80} is not valid Unicode")


def _given(name: str, value: Any) -> NewTensor:
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "layout"):
        dtype, shape, data, is_own = _of_torch(name, value)
    else:
        dtype, shape, data, is_own = _of_numpy(name, value)
    if not data.nbytes:
        raise InvalidArgument(f"{name} has no elements (shape {list(shape)}): leave it out")
    return NewTensor(name, dtype, shape, data, is_own)


def _of_torch(name: str, value: "torch.Tensor") -> tuple[str, tuple[int, ...], Bytes, bool]:
    import torch

    dtype = _dtype(name, str(value.dtype).removeprefix("torch."))
    if value.layout is not torch.strided or value.device.type == "meta":
        raise InvalidArgument(
            f"{name} is on the device {value.device} with the layout {value.layout}: only tensors"
            " with all their elements in memory can be pushed"
        )
    plain = value.detach().resolve_conj().resolve_neg()
    flat = plain.cpu().contiguous().reshape(-1)
    is_own = flat.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()
    return dtype, tuple(value.shape), flat.view(torch.uint8).numpy(), is_own


def _of_numpy(name: str, value: Any) -> tuple[str, tuple[int, ...], Bytes, bool]:
    if not hasattr(value, "__array__"):
        raise InvalidArgument(
            f"{name} is {type(value).__module__}.{type(value).__qualname__}: give a tensor of torch"
            " or an array of numpy"
        )
    array = np.asarray(value)
    dtype = _dtype(name, array.dtype.name)
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.dtype.isnative:
        flat = flat.astype(flat.dtype.newbyteorder("="))
    is_own = not np.may_share_memory(flat, array)
    return dtype, array.shape, flat.view(np.uint8), is_own


def _dtype(name: str, known_as: str) -> str:
    found = _SAFETENSORS.get(known_as)
    if found is None:
        raise InvalidArgument(
            f"{name} has elements of type {known_as}, which safetensors cannot hold: cast it to one"
            f" of {', '.join(_SAFETENSORS)}"
        )
    return found


def check_framework(framework: str) -> None:
    """InvalidArgument unless tensors can be made for it here."""
    if framework not in ("torch", "numpy"):
        raise InvalidArgument(f"framework is torch or numpy, not {framework!r}")
    if framework == "torch":
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError as exc:
            raise InvalidArgument(
                "torch is not installed: install it, or ask for framework='numpy'"
            ) from exc


def as_tensors(held: Mapping[str, HeldTensor], framework: Framework) -> dict[str, Any]:
    """The tensors as the framework has them. They share the memory of `held`."""
    make = _to_torch if framework == "torch" else _to_numpy
    return {name: make(each) for name, each in held.items()}


def framework_dtype(held: HeldTensor) -> str | None:
    """The name of the element type in torch and numpy; None if they have none."""
    return _NAMES.get(held.dtype)


def _to_torch(held: HeldTensor) -> Any:
    import torch

    dtype = getattr(torch, _NAMES.get(held.dtype, held.dtype), None)
    if dtype is None:
        raise _no_dtype(held, "this release of torch")
    return torch.from_numpy(held.data).view(dtype).reshape(held.shape)


def _to_numpy(held: HeldTensor) -> Any:
    name = _NAMES.get(held.dtype, held.dtype)
    dtype = getattr(np, "bool_" if name == "bool" else name, None)
    if dtype is None:
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ModuleNotFoundError as exc:
            raise InvalidArgument(
                f"{held.name} has elements of type {name}, which numpy has only with the package"
                " ml_dtypes: install it, or ask for framework='torch'"
            ) from exc
        dtype = getattr(ml_dtypes, name, None)
    if dtype is None:
        raise _no_dtype(held, "numpy")
    return held.data.view(dtype).reshape(held.shape)


def _no_dtype(held: HeldTensor, framework: str) -> InvalidArgument:
    return InvalidArgument(
        f"{held.name} has elements of type {held.dtype}, which {framework} does not have: pull the"
        " files of the step instead"
    )

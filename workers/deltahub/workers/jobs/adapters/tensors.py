"""Reads weights and factors as arrays, and stores the factors that a job makes."""

import json
from collections.abc import Iterator
from typing import Final

import numpy as np

from deltahub.codecs._native import narrow_doubles, widen_words
from deltahub.codecs.dtypes import DType
from deltahub.codecs.files.recipe import TensorRef
from deltahub.codecs.frames.encode import encode_frame, split_frames, tensor_spec
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.adapters.factors import Values
from deltahub.methods.adapters.initial.principal import Weight
from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.weights.targets import TRANSPOSED_MODELS
from deltahub.registry.packs.encoder_generation import generation_of
from deltahub.registry.results.inputs import InputModel, InputTensor, read_input
from deltahub.registry.results.tensors import UNNAMED, MadePack, MadeTensor
from deltahub.workers.compute.context import ComputeContext

# Elements that are doubles while a weight becomes single precision.
_BLOCK: Final = 1 << 20
_CONFIG: Final = "config.json"
FLOATS: Final = ("F32", "F16", "BF16", "F64")


def read_matrix(context: ComputeContext, tensor: InputTensor, title: str) -> Weight:
    """A matrix in single precision, as it is stored. title: for errors.

    CannotAdapt for a dtype that is no plain float, and for infinite and NaN elements.
    """
    ref = tensor.ref
    dtype = _float_dtype(tensor, title)
    out = np.empty(ref.size // dtype.itemsize, np.float32)
    first = 0
    for values in read_blocks(context, tensor):
        out[first : first + len(values)] = values
        first += len(values)
    if not np.isfinite(out).all():
        raise CannotAdapt(_not_finite(ref.name, title))
    return out.reshape(ref.shape)


def read_blocks(context: ComputeContext, tensor: InputTensor) -> Iterator[Values]:
    """The elements of a tensor of floats in double precision, some at a time, in their order."""
    dtype = DType[tensor.ref.dtype]
    count = tensor.ref.size // dtype.itemsize
    for first in range(0, count, _BLOCK):
        words = memoryview(bytearray(min(_BLOCK, count - first) * dtype.itemsize))
        context.reader.read_tensor_into(tensor.row, first * dtype.itemsize, words)
        wide = np.empty(len(words) // dtype.itemsize, np.float64)
        widen_words(WORD_KINDS[dtype], words, wide)
        yield wide


def read_values(context: ComputeContext, tensor: InputTensor, title: str) -> Values:
    """A small tensor in double precision. The same errors."""
    ref = tensor.ref
    dtype = _float_dtype(tensor, title)
    words = memoryview(bytearray(ref.size))
    context.reader.read_tensor_into(tensor.row, 0, words)
    out = np.empty(ref.size // dtype.itemsize, np.float64)
    widen_words(WORD_KINDS[dtype], words, out)
    if not np.isfinite(out).all():
        raise CannotAdapt(_not_finite(ref.name, title))
    return out.reshape(ref.shape)


def store_values(
    context: ComputeContext, pack: MadePack, values: Values, dtype: str, name: str
) -> dict[str, object]:
    """Add a tensor to the pack; it as plain JSON, for `made_ref`. CannotAdapt for values that the
    dtype cannot hold.
    """
    spec = tensor_spec(UNNAMED, dtype, values.shape)
    words = words_of(values, dtype, name)
    effort = context.registry.settings.effort
    with MadeTensor(context.registry) as made:
        for part in split_frames(spec):
            size = spec.dtype.itemsize
            span = words[part.start * size : (part.start + part.count) * size]
            made.add(encode_frame(spec, part, span, threads=context.threads, effort=effort), span)
        content = pack.add(made, generation_of(effort))
    return {"name": name, "dtype": dtype, "shape": list(values.shape), "content": content.hex()}


def words_of(values: Values, dtype: str, name: str) -> memoryview:
    """The values in a dtype, each rounded to the nearest one."""
    kind = DType[dtype]
    words = memoryview(bytearray(values.size * kind.itemsize))
    if narrow_doubles(WORD_KINDS[kind], np.ascontiguousarray(values).ravel(), words):
        raise CannotAdapt(
            f"{name} has values that {dtype} cannot hold: choose F32 as the dtype, or mend the"
            " weights that it is made from"
        )
    return words


def rounded(values: Values, dtype: str, name: str) -> Values:
    """The values as they are after they were stored in a dtype."""
    out = np.empty(values.size, np.float64)
    widen_words(WORD_KINDS[DType[dtype]], words_of(values, dtype, name), out)
    return out.reshape(values.shape)


def is_transposed(context: ComputeContext, base: InputModel) -> bool:
    """Whether the model's linear layers keep their weights as inputs x outputs."""
    if not any(file.path == _CONFIG for file in base.files):
        return False
    try:
        config = json.loads(read_input(context.registry, context.reader, base, _CONFIG))
    except ValueError as exc:
        raise CannotAdapt(f"{_CONFIG} of {base.title} is no JSON: {exc}") from exc
    return isinstance(config, dict) and config.get("model_type") in TRANSPOSED_MODELS


def made_ref(made: dict[str, object]) -> TensorRef:
    """What `store_values` told, as a part of a file."""
    shape = tuple(int(each) for each in _list(made["shape"]))
    dtype = str(made["dtype"])
    size = int(np.prod(shape, dtype=np.int64)) * DType[dtype].itemsize
    return TensorRef(bytes.fromhex(str(made["content"])), size, dtype, shape, str(made["name"]))


def _list(value: object) -> list[int]:
    assert isinstance(value, list)
    return value


def _float_dtype(tensor: InputTensor, title: str) -> DType:
    if tensor.ref.dtype not in FLOATS:
        raise CannotAdapt(
            f"{tensor.ref.name} of {title} has dtype {tensor.ref.dtype}; adapters are made of"
            f" {', '.join(FLOATS)}"
        )
    return DType[tensor.ref.dtype]


def _not_finite(name: str | None, title: str) -> str:
    return (
        f"{name} of {title} has infinite or NaN elements: nothing can be made of it; push the"
        " weights of a training that ended well"
    )

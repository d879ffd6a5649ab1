"""Reads the same part of a tensor from base and fine-tunes."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from deltahub.codecs._native import count_infinite
from deltahub.codecs.casts import cast
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_plan import BasePlan, BaseSegment
from deltahub.codecs.frames.encode import FrameRange, TensorSpec, split_frames, tensor_spec
from deltahub.codecs.frames.header import MAX_FRAME
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.errors import CannotMerge
from deltahub.registry.results.inputs import InputTensor
from deltahub.registry.results.tensors import UNNAMED
from deltahub.workers.compute.context import ComputeContext

# Bytes of all models' parts together, which bounds the memory of a merge of any number of models.
BUFFER_BYTES: Final = 192 << 20
MIN_PART_BYTES: Final = 1 << 20


def spec_of(tensor: InputTensor) -> TensorSpec:
    return tensor_spec(UNNAMED, tensor.ref.dtype, tensor.ref.shape)


def parts_of(spec: TensorSpec, n_buffers: int) -> list[FrameRange]:
    """The frames of a tensor, so small that n_buffers of one fit into the memory of a merge."""
    limit = max(BUFFER_BYTES // n_buffers, MIN_PART_BYTES)
    return split_frames(spec, min(limit, MAX_FRAME))


def plan_of(content: bytes, dtype: DType, part: FrameRange, own: DType | None = None) -> BasePlan:
    """The part of a tensor of equal shape as a base. own: its dtype, if that is another."""
    segment = BaseSegment(content, own or dtype, part.start, part.count)
    return BasePlan((segment,), is_cast=own not in (None, dtype))


def read_elements(
    context: ComputeContext, tensor: InputTensor, dtype: DType, start: int, count: int
) -> memoryview:
    """The words of elements [start, start + count) of a tensor, cast to a dtype."""
    own = DType.from_name(tensor.ref.dtype)
    words = memoryview(bytearray(count * own.itemsize))
    context.reader.read_tensor_into(tensor.row, start * own.itemsize, words)
    if own is dtype:
        return words
    out = memoryview(bytearray(count * dtype.itemsize))
    cast(words, own, dtype, out)
    return out


@dataclass(frozen=True)
class Part:
    """words: of each tensor in turn; two tensors of one content share them."""

    range: FrameRange
    words: list[memoryview]


class PartReader:
    """Reads parts of tensors of one shape, several at once, cast to one dtype.

    dtype_of: the tensor whose dtype that is; by default the first one.
    """

    def __init__(
        self,
        context: ComputeContext,
        tensors: Sequence[InputTensor],
        dtype_of: InputTensor | None = None,
    ) -> None:
        self._context = context
        self._tensors = tensors
        self.spec = spec_of(dtype_of or tensors[0])
        self.kind = WORD_KINDS[self.spec.dtype]

    def parts(self, n_more_buffers: int) -> Iterator[Part]:
        """All parts in order. n_more_buffers: the caller's own, of a part's size each."""
        n_buffers = len({tensor.row for tensor in self._tensors}) + n_more_buffers
        for part in parts_of(self.spec, n_buffers):
            yield self._read(part)

    def whole(self) -> Iterator[Part]:
        """The whole tensor as one part, which may be larger than a frame."""
        if self.spec.count:
            yield self._read(FrameRange(0, self.spec.count, self.spec.rows, self.spec.columns))

    def _read(self, part: FrameRange) -> Part:
        rows = {tensor.row: tensor for tensor in self._tensors}

        def read(tensor: InputTensor) -> memoryview:
            return read_elements(self._context, tensor, self.spec.dtype, part.start, part.count)

        with ThreadPoolExecutor(max(1, min(self._context.threads, len(rows)))) as pool:
            words = dict(zip(rows, pool.map(read, rows.values()), strict=True))
        return Part(part, [words[tensor.row] for tensor in self._tensors])

    def check_finite(self, words: memoryview, name: str, model: str) -> None:
        """CannotMerge, which names tensor and model, for words that are infinite or NaN."""
        check_finite(self.kind, words, name, model)


def check_finite(kind: int, words: memoryview, name: str, model: str) -> None:
    """CannotMerge, which names tensor and model, for words that are infinite or NaN."""
    n = count_infinite(kind, words)
    if n:
        raise CannotMerge(
            f"{name} of {model} has infinite or NaN elements, {n} in one part of it: a merge with"
            " them would spoil every task. Leave the model out, or exclude the tensor, so that each"
            " task keeps its own"
        )

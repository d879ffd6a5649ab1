"""Reads the same part of a tensor from base and fine-tunes."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from deltahub.codecs._native import count_infinite
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


def plan_of(content: bytes, dtype: DType, part: FrameRange) -> BasePlan:
    """The part of a tensor of equal shape and dtype, as a base."""
    return BasePlan((BaseSegment(content, dtype, part.start, part.count),), is_cast=False)


@dataclass(frozen=True)
class Part:
    """words: of each tensor in turn; two tensors of one content share them."""

    range: FrameRange
    words: list[memoryview]


class PartReader:
    """Reads parts of tensors of one shape and dtype, several at once."""

    def __init__(self, context: ComputeContext, tensors: Sequence[InputTensor]) -> None:
        self._context = context
        self._tensors = tensors
        self.spec = spec_of(tensors[0])
        self.kind = WORD_KINDS[self.spec.dtype]

    def parts(self, n_more_buffers: int) -> Iterator[Part]:
        """All parts in order. n_more_buffers: the caller's own, of a part's size each."""
        rows = list(dict.fromkeys(tensor.row for tensor in self._tensors))
        size = self.spec.dtype.itemsize
        with ThreadPoolExecutor(max(1, min(self._context.threads, len(rows)))) as pool:
            for part in parts_of(self.spec, len(rows) + n_more_buffers):

                def read(row: int, part: FrameRange = part) -> memoryview:
                    words = memoryview(bytearray(part.count * size))
                    self._context.reader.read_tensor_into(row, part.start * size, words)
                    return words

                read_words = dict(zip(rows, pool.map(read, rows), strict=True))
                yield Part(part, [read_words[tensor.row] for tensor in self._tensors])

    def whole(self) -> Iterator[Part]:
        """The whole tensor as one part, which may be larger than a frame."""
        size = self.spec.size_bytes
        rows = dict.fromkeys(tensor.row for tensor in self._tensors)
        words = {row: memoryview(bytearray(size)) for row in rows}
        for row, out in words.items():
            self._context.reader.read_tensor_into(row, 0, out)
        if self.spec.count:
            part = FrameRange(0, self.spec.count, self.spec.rows, self.spec.columns)
            yield Part(part, [words[tensor.row] for tensor in self._tensors])

    def check_finite(self, words: memoryview, name: str, model: str) -> None:
        """CannotMerge, which names tensor and model, for words that are infinite or NaN."""
        n = count_infinite(self.kind, words)
        if n:
            raise CannotMerge(
                f"{name} of {model} has infinite or NaN elements, {n} in one part of it: a merge"
                " with them would spoil every task"
            )

"""Reads the same part of a tensor from both models."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs._native import widen_words
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.encode import FrameRange, TensorSpec, split_frames, tensor_spec
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.comparing.slices import Slice, Values
from deltahub.methods.comparing.tensor import WHOLE_ROW
from deltahub.registry.results.inputs import InputTensor
from deltahub.registry.results.tensors import UNNAMED
from deltahub.workers.compute.context import ComputeContext

# Elements that are doubles at once, of both models each.
_BLOCK: Final = 1 << 20
_WORDS: Final = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}
# Bytes of one model's part. As large as a frame, so that each frame is decoded once.
_PART_BYTES: Final = 64 << 20

Tell = Callable[[int], None]
"""tell(bytes of both tensors that were read since the last call)"""


class PairReader:
    """Two tensors of one shape."""

    def __init__(
        self, context: ComputeContext, first: InputTensor, second: InputTensor, tell: Tell
    ) -> None:
        self._context = context
        self._tensors = (first, second)
        self._tell = tell
        self._specs = tuple(_spec(each) for each in self._tensors)
        dtypes = [each.ref.dtype for each in self._tensors]
        # Packed types, such as F4, have no elements of whole bytes.
        self.is_measured = all(
            name in DType.__members__ and DType[name].is_float for name in dtypes
        )
        self._is_one_dtype = dtypes[0] == dtypes[1]

    def count_same(self) -> int | None:
        """How many elements are the same, bit by bit; None if the dtypes differ, or are packed."""
        names = {each.ref.dtype for each in self._tensors}
        if not self._is_one_dtype or not names <= DType.__members__.keys():
            return None
        return sum(int((a == b).sum()) for _, (a, b) in self._parts())

    def read(self) -> Iterator[Slice]:
        """The slices of both tensors, in order. Of a matrix they are whole rows."""
        columns = self._specs[0].columns
        for part, words in self._parts():
            row, column = divmod(part.start, columns)
            width = part.columns
            step = max(1, _BLOCK // width)
            across = width if width <= WHOLE_ROW else _BLOCK
            for at in range(0, part.rows, step):
                height = min(step, part.rows - at)
                for left in range(0, width, across):
                    n = height * min(across, width - left)
                    begin = at * width + left
                    yield self._slice(
                        (row + at, column + left), height, [w[begin : begin + n] for w in words]
                    )

    def _slice(self, place: tuple[int, int], height: int, words: list[npt.NDArray[Any]]) -> Slice:
        first, second = (
            _doubles(spec.dtype, each).reshape(height, -1)
            for spec, each in zip(self._specs, words, strict=True)
        )
        if self._is_one_dtype:
            n_same = int(np.count_nonzero(words[0] == words[1]))
        else:
            n_same = int(np.count_nonzero(first == second))
        return Slice(*place, first, second, n_same)

    def _parts(self) -> Iterator[tuple[FrameRange, list[npt.NDArray[Any]]]]:
        wide = max(self._specs, key=lambda spec: spec.dtype.itemsize)
        for part in split_frames(wide, _PART_BYTES):
            words = [self._read(at, part) for at in range(len(self._tensors))]
            yield part, words
            self._tell(sum(each.nbytes for each in words))

    def _read(self, at: int, part: FrameRange) -> npt.NDArray[Any]:
        size = self._specs[at].dtype.itemsize
        words = memoryview(bytearray(part.count * size))
        self._context.reader.read_tensor_into(self._tensors[at].row, part.start * size, words)
        return np.frombuffer(words, _WORDS[size])


def _spec(tensor: InputTensor) -> TensorSpec:
    return tensor_spec(UNNAMED, tensor.ref.dtype, tensor.ref.shape)


def _doubles(dtype: DType, words: npt.NDArray[Any]) -> Values:
    out: Values = np.empty(len(words), np.float64)
    widen_words(WORD_KINDS[dtype], words.data.cast("B"), out)
    return out

"""Tensors of one step in memory: what a push sends, and what the next step is a difference from."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from deltahub.client.errors import InvalidArgument
from deltahub.client.local.tensor_sources import MissingTensor
from deltahub.codecs.frames import TensorSpec, tensor_spec

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
# Elements that are compared at a time: a tensor that has changed differs in the first ones.
_COMPARED = 1 << 17


@dataclass(frozen=True)
class HeldTensor:
    """A tensor in memory. name: None for bytes of a file that are no tensor of the step.

    tensor: its content id. dtype: as safetensors names it. data: its bytes, shape (size,).
    """

    name: str | None
    tensor: bytes
    dtype: str
    shape: tuple[int, ...]
    data: Bytes

    @property
    def size(self) -> int:
        return self.data.nbytes

    @property
    def view(self) -> memoryview:
        return self.data.data

    @property
    def spec(self) -> TensorSpec:
        return tensor_spec(self.tensor, self.dtype, self.shape)

    def part(self, first_byte: int, size: int) -> memoryview:
        return self.view[first_byte : first_byte + size]

    def is_right(self) -> bool:
        """Whether the bytes still have the content id. Whoever got the tensor may have written."""
        return blake3(self.view).digest() == self.tensor


@dataclass
class HeldStep:
    """Tensors of a step of a run. Bases of frames are read by content id.

    is_shared: somebody else has tensors with the same memory, and may have written into them.
    """

    number: int
    commit: str
    tensors: Mapping[str, HeldTensor]
    is_shared: bool = False
    _by_id: dict[bytes, HeldTensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_id = {each.tensor: each for each in self.tensors.values()}

    def __iter__(self) -> Iterator[HeldTensor]:
        return iter(self.tensors.values())

    def right_ones(self, threads: int) -> "HeldStep":
        """The tensors that still have the bytes of their content ids."""
        with ThreadPoolExecutor(threads) as pool:
            are_right = list(pool.map(HeldTensor.is_right, self.tensors.values()))
        pairs = zip(self.tensors.items(), are_right, strict=True)
        return HeldStep(self.number, self.commit, {key: each for (key, each), ok in pairs if ok})

    def part(self, tensor: bytes, first_byte: int, size: int) -> memoryview:
        """Bytes of a tensor, where they lie. MissingTensor if the step does not have them."""
        found = self._by_id.get(tensor)
        if found is None or first_byte + size > found.size:
            raise MissingTensor(tensor)
        return found.part(first_byte, size)

    def read(self, tensor: bytes, first_byte: int, out: memoryview) -> None:
        """Fills `out` with bytes of a tensor. MissingTensor if the step does not have them."""
        out[:] = self.part(tensor, first_byte, out.nbytes)


@dataclass(frozen=True)
class NewTensor:
    """A tensor that somebody gave us. is_own: nobody else can write into `data`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes
    is_own: bool


def hold(
    tensors: Iterable[NewTensor], held: HeldStep | None, threads: int
) -> dict[str, HeldTensor]:
    """Name -> the tensor, copied and hashed. One that has not changed keeps its bytes and id.

    held: of memory that nobody else writes into.
    """

    def take(new: NewTensor) -> HeldTensor:
        old = None if held is None else held.tensors.get(new.name)
        same_kind = old is not None and (old.dtype, old.shape) == (new.dtype, new.shape)
        if old is not None and same_kind and _is_equal(old.data, new.data):
            return old
        # The trainer goes on writing into its own tensors.
        data = new.data if new.is_own else new.data.copy()
        tensor = blake3(data.data).digest()
        return HeldTensor(new.name, tensor, new.dtype, new.shape, data)

    with ThreadPoolExecutor(threads) as pool:
        return {each.name or "": each for each in pool.map(take, tensors)}


def empty_bytes(size: int) -> Bytes:
    """Memory that nobody has written yet."""
    try:
        return np.empty(size, np.uint8)
    except (MemoryError, ValueError) as exc:
        raise InvalidArgument(f"there is no memory for a tensor of {size} bytes") from exc


def _is_equal(one: Bytes, other: Bytes) -> bool:
    whole = one.nbytes // 8 * 8
    words, other_words = one[:whole].view(np.uint64), other[:whole].view(np.uint64)
    for at in range(0, len(words), _COMPARED):
        if not np.array_equal(words[at : at + _COMPARED], other_words[at : at + _COMPARED]):
            return False
    return bool(np.array_equal(one[whole:], other[whole:]))

"""Where a module's weight comes from while it is not in memory as a plain tensor."""

import weakref
from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar, Final, Self

import torch

from deltahub.codecs.cuda.weights import GpuWeight
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import InvalidInput
from deltahub.codecs.exports.coding import AnyCoding, Coding, open_part
from deltahub.codecs.exports.file import CompressedWeight
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.methods.exporting.entquant import Encoding, coding_of, encode_words
from deltahub.methods.inference.cards import Card, Resident

TORCH_DTYPES: Final = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F8_E4M3: torch.float8_e4m3fn,
    DType.F8_E5M2: torch.float8_e5m2,
}
CODED_DTYPES: Final = {found: dtype for dtype, found in TORCH_DTYPES.items()}


class Source:
    """A compressed weight, which several modules may share.

    bits: mantissa bits that are read; None for all that are stored. threads: for decoding.
    """

    decodes_rows: ClassVar[bool] = True  # whether some rows cost less than all of them

    def __init__(self, weight: CompressedWeight, bits: int | None = None, threads: int = 1) -> None:
        """InvalidInput if the weight cannot be read at `bits`."""
        weight.coding.needed(weight.coding.bits if bits is None else bits)
        self.weight = weight
        self.bits = bits
        self.threads = threads
        self._decoded: tuple[str, weakref.ref[torch.Tensor]] | None = None
        # The sources of this weight on GPUs, while modules have them.
        self.on_cards: weakref.WeakValueDictionary[torch.device, Source]
        self.on_cards = weakref.WeakValueDictionary()

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def state(self) -> str:
        """Another text when the weight decodes to another tensor than before."""
        return ""

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    @property
    def dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.weight.coding.dtype]

    @property
    def plain_bytes(self) -> int:
        return self.weight.plain_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return self.weight.size_bytes(self.bits)

    def upload(self, card: Card) -> Resident:
        """A GPU's copy of the compressed bytes. NoGpu, InvalidInput, CorruptFrame."""
        return GpuWeight(self.weight, self.bits, card.decoder)

    def decode_into(self, out: torch.Tensor) -> None:
        """Fill a contiguous tensor on the CPU, of the weight's dtype. CorruptFrame."""
        self.weight.decode_into(memory_of(out), self.bits, self.threads)

    def decode(self) -> torch.Tensor:
        """The weight as a plain tensor of its own."""
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        self.decode_into(out)
        return out

    def shared(self) -> torch.Tensor:
        """The same tensor for all as long as somebody keeps it, so that tied weights stay tied when
        they are saved.
        """
        state = self.state
        known = None
        if self._decoded is not None and self._decoded[0] == state:
            known = self._decoded[1]()
        if known is None:
            known = self.decode()
            self._decoded = state, weakref.ref(known)
        return known

    def decode_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Some rows of a matrix; ascending numbers, each once."""
        columns = prod(self.shape[1:])
        out = torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        for first, begin, count in _runs(rows.tolist()):
            room = memory_of(out[first : first + count])
            self.weight.decode_range(
                begin * columns, count * columns, room, self.bits, self.threads
            )
        return out

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Nobody changes a source.
        return self


def bits_to_read(codings: Mapping[str, AnyCoding], bits: int | None) -> dict[str, int | None]:
    """name -> the mantissa bits to read of each weight of an export, None for all that it has.

    Weights that were kept lossless are read whole, and so are those that a budget gave fewer than
    `bits`. InvalidInput, which names a weight, unless all others can be read at `bits`.
    """
    found: dict[str, int | None] = dict.fromkeys(codings)
    if bits is None:
        return found
    if type(bits) is not int or bits < 0:
        raise InvalidInput(
            f"bits {bits!r} is no number of mantissa bits: give one that the export has, or leave"
            " bits out to read all of them"
        )
    integers = next((name for name, how in codings.items() if isinstance(how, IntegerCoding)), None)
    if integers is not None:
        raise InvalidInput(
            f"{integers} consists of integers (entquant), which are only read as they are: leave"
            " bits out"
        )
    hows = {name: how for name, how in codings.items() if isinstance(how, Coding)}
    rounded = {
        name: how for name, how in hows.items() if not how.is_lossless or len(how.levels) > 1
    }
    most = max((how.bits for how in (rounded or hows).values()), default=0)
    if not rounded and bits != most:
        raise InvalidInput(
            f"the export is lossless, and its weights are read whole, not at {bits} mantissa bits:"
            " leave bits out" + _made_with(bits, most)
        )
    refusing = [name for name, how in rounded.items() if not _has(how, bits)]
    if bits > most or refusing:
        levels = {level for how in rounded.values() for level in how.levels}
        usable = sorted(
            level for level in levels if all(_has(how, level) for how in rounded.values())
        )
        name = refusing[0] if refusing else max(rounded, key=lambda each: rounded[each].bits)
        stored = ", ".join(map(str, rounded[name].levels))
        raise InvalidInput(
            f"{name} was stored to be read at {stored} mantissa bits, not {bits}: give"
            f" {' or '.join(map(str, usable))}, or leave bits out to read all that each weight has"
            + _made_with(bits, most)
        )
    for name, how in rounded.items():
        found[name] = bits if bits < how.bits else None
    return found


def _has(how: Coding, bits: int) -> bool:
    """Whether a rounded weight can be read at `bits`, or at all its bits, which are fewer."""
    return bits in how.levels or how.bits < bits


def _made_with(bits: int, most: int) -> str:
    return f"; for fewer make another export, with `also {bits}`" if bits < min(most, 8) else ""


def compressed(
    name: str, tensor: torch.Tensor, encoding: Encoding, threads: int = 1
) -> CompressedWeight:
    """A weight as an export has it, in memory. tensor: finite unless it is coded lossless."""
    words = memory_of(tensor.detach().to("cpu").contiguous())
    return compressed_words(name, tuple(tensor.shape), words, encoding, threads)


def compressed_words(
    name: str, shape: tuple[int, ...], words: memoryview, encoding: Encoding, threads: int = 1
) -> CompressedWeight:
    """The same of the bytes of a weight."""
    how = coding_of(encoding)
    step = how.slice_elements * how.dtype.itemsize
    slices = []
    for begin in range(0, len(words), step):
        piece = words[begin : begin + step]
        count = len(piece) // how.dtype.itemsize
        frames, _ = encode_words(encoding, piece, threads)
        slices.append({part: open_part(how, part, data, count) for part, data in frames.items()})
    return CompressedWeight(name, shape, how, tuple(slices))


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, which are the tensor's own."""
    data: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(data)


def _runs(rows: list[int]) -> list[tuple[int, int, int]]:
    """(position, first row, number of rows) of rows that follow each other."""
    runs: list[tuple[int, int, int]] = []
    for at, row in enumerate(rows):
        if runs and runs[-1][1] + runs[-1][2] == row:
            position, first, count = runs[-1]
            runs[-1] = position, first, count + 1
        else:
            runs.append((at, row, 1))
    return runs

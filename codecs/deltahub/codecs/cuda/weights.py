"""A weight of an export on a GPU, where it is decoded into weight buffers."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from deltahub.codecs.cuda.arrays import Array, ArrayBytes, bytes_of
from deltahub.codecs.cuda.cupy_device import CupyDevice
from deltahub.codecs.cuda.device import Device, Launch, Memory
from deltahub.codecs.cuda.frames import GpuFrames
from deltahub.codecs.cuda.image import ALIGNMENT, DECODABLE
from deltahub.codecs.cuda.layout import GROUP, PIECE, PLANE
from deltahub.codecs.errors import CodecError, CorruptFrame, InvalidInput
from deltahub.codecs.exports.coding import (
    MANTISSA_BITS,
    SCALES,
    SLICE_ELEMENTS,
    WORDS,
    AnyCoding,
    Coding,
    encode_slice,
    lossless,
    open_part,
    plane_name,
)
from deltahub.codecs.exports.file import CompressedWeight, named
from deltahub.codecs.exports.parts import Part

_THREADS: Final = 256  # of a thread block that joins planes
_WORDS_A_GROUP: Final = 8 * _THREADS * 4  # a thread takes eight words, four times


class GpuWeight:
    """A weight whose compressed bytes stay on a GPU: those that a reader of `bits` bits needs."""

    def __init__(
        self, weight: CompressedWeight, bits: int | None = None, device: Device | None = None
    ) -> None:
        """Uploads the weight. bits: mantissa bits to read; None for all.

        CorruptFrame names the weight if a part other than its words is damaged; the words are
        checked when they are decoded. InvalidInput if no level has so many bits, NoGpu without a
        GPU or CuPy.
        """
        self._device = device = CupyDevice() if device is None else device
        self._weight = weight
        try:
            how = _without_steps(weight.coding)
            wanted = how.bits if bits is None else bits
            how.needed(wanted)
            self._parts = _PlaneParts(weight, wanted, device)
            words = [parts[WORDS] for parts in weight.slices]
            views = [(part.view, part.body) for part in words]
            self._frames = GpuFrames(views, device, self._parts.launches)
        except CodecError as exc:
            raise named(weight.name, exc) from exc

    @property
    def size_bytes(self) -> int:
        """The memory on the device that this takes."""
        return self._frames.size_bytes + self._parts.size_bytes

    def decode_into(
        self, out: Array | ArrayBytes, stream: Any = None, *, verify: bool = True
    ) -> None:
        """Fills an array on the device with all elements, in the order of a stream.

        The arguments are those of GpuFrames.decode_into. This does not wait for the GPU: `check`
        tells damage.
        """
        outs = slices_of(bytes_of(out), self._weight)
        self._frames.decode_into(outs, None, stream, verify=verify)

    def check(self, stream: Any = None) -> None:
        """Waits for the stream. CorruptFrame names the weight if what was decoded is damaged."""
        try:
            self._frames.check(stream)
        except CodecError as exc:
            raise named(self._weight.name, exc) from exc


class GpuDelta:
    """A fine-tune's weight on a GPU, as its differences from the weight of a base."""

    def __init__(
        self,
        weight: CompressedWeight,
        deltas: Sequence[Part | None],
        device: Device | None = None,
    ) -> None:
        """Uploads the differences. weight: of the base. deltas: for each of its slices what
        encode_delta made; None where nothing changed. The errors of GpuWeight.
        """
        self._weight = weight
        changed = [(at, part) for at, part in enumerate(deltas) if part is not None]
        self._at = [at for at, _ in changed]
        self._has_base = [part.view.header.base is not None for _, part in changed]
        self._frames: GpuFrames | None = None
        try:
            parts = [_decodable(_without_steps(weight.coding), part) for _, part in changed]
            if parts:
                self._frames = GpuFrames([(part.view, part.body) for part in parts], device)
        except CodecError as exc:
            raise named(weight.name, exc) from exc

    @property
    def size_bytes(self) -> int:
        """The memory on the device that this takes."""
        return 0 if self._frames is None else self._frames.size_bytes

    def apply_to(self, out: Array | ArrayBytes, stream: Any = None, *, verify: bool = True) -> None:
        """Makes the elements of the base in `out` those of the fine-tune, in the order of a stream;
        else as GpuWeight.decode_into.
        """
        if self._frames is None:
            return
        slices = slices_of(bytes_of(out), self._weight)
        outs = [slices[at] for at in self._at]
        pairs = zip(outs, self._has_base, strict=True)
        bases = [each if has_base else None for each, has_base in pairs]
        self._frames.decode_into(outs, bases, stream, verify=verify)

    def check(self, stream: Any = None) -> None:
        """Waits for the stream. CorruptFrame names the weight if what was decoded is damaged."""
        if self._frames is None:
            return
        try:
            self._frames.check(stream)
        except CodecError as exc:
            raise named(self._weight.name, exc) from exc


def _without_steps(how: AnyCoding) -> Coding:
    """InvalidInput for integers with a step for each row."""
    if not isinstance(how, Coding):
        raise InvalidInput(
            "integers with a step for each row (entquant) are decoded on a CPU alone: run the model"
            " there, or export it by the method neuzip"
        )
    return how


def slices_of(out: ArrayBytes, weight: CompressedWeight) -> list[ArrayBytes]:
    """The bytes of each slice of a weight. InvalidInput if `out` has another size."""
    if out.size != weight.plain_bytes:
        raise InvalidInput(
            f"{weight.name}: an array of {out.size} bytes for {weight.plain_bytes} decoded bytes"
        )
    step = SLICE_ELEMENTS * weight.coding.dtype.itemsize
    return [out.part(at, min(step, out.size - at)) for at in range(0, out.size, step)]


class _PlaneParts:
    """The planes and scales of a weight on a device, and the launches that put them into words."""

    def __init__(self, weight: CompressedWeight, bits: int, device: Device) -> None:
        how = _without_steps(weight.coding)
        self._device = device
        self._kept: list[Memory] = []
        self.launches: list[Launch] = []
        told, fill = how.planes(bits), how.fill(bits)
        if not told and not how.block and not fill:
            return
        pieces = np.zeros(len(weight.slices), PIECE)
        planes: list[tuple[int, int, int]] = []
        groups: list[tuple[int, int, int]] = []
        mantissa_bits = MANTISSA_BITS[how.dtype]
        for at, parts in enumerate(weight.slices):
            piece, count = pieces[at], parts[WORDS].view.header.count
            piece["mantissa_bits"], piece["fill"] = mantissa_bits, fill
            piece["exponent_bits"] = 8 * how.dtype.itemsize - 1 - mantissa_bits
            piece["first_plane"], piece["n_planes"] = len(planes), len(told)
            for level, low, width in told:
                planes.append((self._uploaded(parts[plane_name(level)]), low, width))
            if how.block:
                piece["scales"] = self._uploaded(parts[SCALES])
                piece["block_bits"] = how.block.bit_length() - 1
            groups += [
                (at, first, min(_WORDS_A_GROUP, count - first))
                for first in range(0, count, _WORDS_A_GROUP)
            ]
        arguments = (
            self._keep(pieces.view(np.uint8)),
            self._keep(np.array(planes, PLANE).view(np.uint8)),
            self._keep(np.array(groups, GROUP).view(np.uint8)),
        )
        kernel = f"join_planes_{8 * how.dtype.itemsize}"
        self.launches.append(Launch(kernel, len(groups), _THREADS, 0, arguments))

    @property
    def size_bytes(self) -> int:
        return sum(memory.size for memory in self._kept)

    def _uploaded(self, part: Part) -> int:
        """The address of a raw frame's bytes, which are checked here because kernels do not."""
        view = part.view
        if not view.holds(0, view.header.n_blocks, part.body):
            raise CorruptFrame("one of its planes or scales has other bytes than were written")
        return self._keep(np.frombuffer(part.body, np.uint8))

    def _keep(self, data: Any) -> int:
        memory = self._device.allocate(max(data.nbytes, ALIGNMENT))
        self._device.upload(memory, data)
        self._kept.append(memory)
        return memory.address


def _decodable(how: Coding, part: Part) -> Part:
    """The frame, or one of the same elements that a GPU decodes, because elements of few values
    are coded by zstd.
    """
    if part.view.header.codec in DECODABLE:
        return part
    frames, _ = encode_slice(lossless(how.dtype), memoryview(part.decoded()))
    return open_part(lossless(how.dtype), WORDS, frames[WORDS], part.view.header.count)

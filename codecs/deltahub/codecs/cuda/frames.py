"""Frames whose compressed bytes stay on a GPU, where they are decoded into weight buffers."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from deltahub.codecs.blocks import BlockFault
from deltahub.codecs.cuda.arrays import Array, ArrayBytes, bytes_of
from deltahub.codecs.cuda.cupy_device import VERIFY, CupyDevice
from deltahub.codecs.cuda.device import Device, Launch, Memory
from deltahub.codecs.cuda.image import ALIGNMENT, Image, Structs, shared_bytes_before_rings
from deltahub.codecs.cuda.layout import (
    GROUP,
    NO_FAULT,
    RING_BYTES,
    SECRET_BYTES,
    TARGET,
    WARP,
    fault_of,
)
from deltahub.codecs.errors import InvalidInput, WrongBase
from deltahub.codecs.frames.view import FrameView
from deltahub.codecs.protocol import Buffer

# More warps of a processor than this no longer hide more of the memory's latency.
ENOUGH_WARPS: Final = 48
_MOST_GROUPS_A_PROCESSOR: Final = 32
_WARPS_A_GROUP: Final = (1, 2, 4, 8, 16)
_MOST_TARGETS: Final = 256  # lists of addresses that are kept for each stream


class GpuFrames:
    """Frames on a GPU, which one call decodes together.

    Small frames decoded together use the GPU better than one after the other: a warp decodes a
    block, and a GPU has thousands of warps.
    """

    def __init__(
        self,
        frames: Sequence[tuple[FrameView, Buffer]],
        device: Device | None = None,
        then: Sequence[Launch] = (),
    ) -> None:
        """Uploads the frames: views, each with the bytes of all its blocks.

        then: launches that follow each decoding, and change the decoded bytes. Their first three
        arguments are the caller's, who keeps that memory; the outputs' addresses are the fourth.

        CorruptFrame if a prelude or a guard is damaged, InvalidInput if a frame has a codec that
        GPUs do not decode or there is none, NoGpu without a GPU or CuPy.
        """
        if not frames:
            raise InvalidInput("no frames to decode: give at least one")
        self._device = device = CupyDevice() if device is None else device
        self._headers = [view.header for view, _ in frames]
        image = Image(frames)
        self._memory = device.allocate(image.size_with_row_values)
        data, structs = image.bytes_at(self._memory.address)
        device.upload(self._memory, data)
        self._frames = self._kept(structs)
        self._blocks = self._kept(image.blocks)
        self._status = self._kept(np.array([NO_FAULT], np.uint64))
        self._targets: dict[tuple[int, bytes], Memory] = {}
        # (launch without its targets, whether it verifies), and the groups that they read
        self._launches: list[tuple[Launch, bool]] = []
        self._groups: list[Memory] = []
        begins = np.cumsum([0, *image.n_blocks])
        for kernel in sorted(set(image.kernels)):
            own = [i for i, each in enumerate(image.kernels) if each == kernel]
            before = max(shared_bytes_before_rings(image.frames[i]) for i in own)
            blocks = [(i, int(begins[i]), image.n_blocks[i]) for i in own]
            n_warps = warps_a_group(sum(n for _, _, n in blocks), before, device)
            self._add_launch(kernel, blocks, n_warps, before + n_warps * RING_BYTES)
        everything = [(i, int(begins[i]), n) for i, n in enumerate(image.n_blocks)]
        n_warps = 4
        self._add_launch(VERIFY, everything, n_warps, n_warps * SECRET_BYTES)
        self._launches += [(launch, False) for launch in then]

    @property
    def size_bytes(self) -> int:
        """The memory on the device that this takes."""
        kept = (self._memory, self._frames, self._blocks, self._status, *self._groups)
        return sum(memory.size for memory in kept)

    def decode_into(
        self,
        outs: Sequence[Array | ArrayBytes],
        bases: Sequence[Array | ArrayBytes | None] | None = None,
        stream: Any = None,
        *,
        verify: bool = True,
    ) -> None:
        """Fills each array with the decoded bytes of its frame, in the order of a stream.

        outs: arrays on the device, of exactly the frames' decoded bytes. bases: for each frame
        its aligned base, in the coding dtype; None for a frame without one. A base may be the
        same memory as its output. stream: of CuPy or torch, or its address; None for CuPy's
        current one. The caller keeps all arrays until the stream is done with them.

        This does not wait for the GPU. Damage is reported by `check`; an output is arbitrary
        then. verify: compare the decoded bytes with the frames' checksums, which costs a second
        pass over the output. Without it `check` reports only streams that no encoder writes.
        """
        targets = self._targets_of(outs, bases)
        memory = self._uploaded(stream, targets)
        for launch, is_verifying in self._launches:
            if verify or not is_verifying:
                arguments = (*launch.arguments[:3], memory.address, self._status.address)
                self._device.launch(
                    stream,
                    Launch(
                        launch.kernel,
                        launch.n_groups,
                        launch.n_threads,
                        launch.shared_bytes,
                        arguments,
                    ),
                )

    def check(self, stream: Any = None) -> None:
        """Waits for the stream. CorruptFrame names the first damaged block of what was decoded."""
        status = int(self._device.download(stream, self._status).view(np.uint64)[0])
        if status == NO_FAULT:
            return
        self._device.upload(self._status, np.array([NO_FAULT], np.uint64).view(np.uint8))
        frame, block, fault = fault_of(status)
        error = BlockFault(fault).error(block, has_base=self._headers[frame].base is not None)
        if len(self._headers) > 1:
            error.args = (f"frame {frame}: {error}",)
        raise error

    def _kept(self, data: Any) -> Memory:
        as_bytes = np.ascontiguousarray(data).view(np.uint8)
        memory = self._device.allocate(max(as_bytes.nbytes, ALIGNMENT))
        self._device.upload(memory, as_bytes)
        return memory

    def _add_launch(
        self, kernel: str, frames: list[tuple[int, int, int]], n_warps: int, shared_bytes: int
    ) -> None:
        groups = [
            (frame, begin + i, min(n_warps, n - i))
            for frame, begin, n in frames
            for i in range(0, n, n_warps)
        ]
        memory = self._kept(np.array(groups, GROUP))
        self._groups.append(memory)
        arguments = (self._frames.address, self._blocks.address, memory.address)
        launch = Launch(kernel, len(groups), n_warps * WARP, shared_bytes, arguments)
        self._launches.append((launch, kernel == VERIFY))

    def _targets_of(
        self,
        outs: Sequence[Array | ArrayBytes],
        bases: Sequence[Array | ArrayBytes | None] | None,
    ) -> Structs:
        n = len(self._headers)
        bases = [None] * n if bases is None else bases
        if len(outs) != n or len(bases) != n:
            raise InvalidInput(f"{len(outs)} outputs and {len(bases)} bases for {n} frames")
        targets: Structs = np.zeros(n, TARGET)
        for header, out, base, target in zip(self._headers, outs, bases, targets, strict=True):
            if base is None and header.base is not None:
                raise WrongBase(f"frames of {header.codec} need their base, and none was given")
            if base is not None and header.base is None:
                raise WrongBase("this frame has no base, and one was given")
            target["out"] = self._address(out, header.size_bytes, header.dtype.itemsize)
            if base is None:
                continue
            size = bytes_of(base).size
            if size != header.size_bytes:
                raise WrongBase(f"a base of {size} bytes for {header.size_bytes} decoded bytes")
            target["base"] = self._address(base, size, header.dtype.itemsize)
        return targets

    def _address(self, array: Array | ArrayBytes, size: int, itemsize: int) -> int:
        found = bytes_of(array)
        if found.size != size:
            raise InvalidInput(f"an array of {found.size} bytes for {size} decoded bytes")
        if found.device != self._device.array_type:
            raise InvalidInput(
                f"an array on device {found.device}, the frames are on {self._device.array_type}"
            )
        if found.address % itemsize != 0:
            raise InvalidInput(f"an array that is not at a multiple of {itemsize} bytes")
        return found.address

    def _uploaded(self, stream: Any, targets: Structs) -> Memory:
        """The targets on the device. Those of earlier calls stay: kernels may still read them."""
        key = (self._device.key_of(stream), targets.tobytes())
        memory = self._targets.get(key)
        if memory is None:
            used = [each for each in self._targets if each[0] == key[0]]
            if len(used) >= _MOST_TARGETS:
                self._device.download(stream, self._status)  # waits for kernels that read them
                for each in used:
                    del self._targets[each]
            memory = self._targets[key] = self._device.allocate(targets.nbytes)
            self._device.upload_on(stream, memory, targets.view(np.uint8))
        return memory


class GpuFrame:
    """One frame on a GPU."""

    def __init__(self, view: FrameView, body: Buffer, device: Device | None = None) -> None:
        """Uploads a frame; body: the bytes of all its blocks. Errors: see GpuFrames."""
        self._frames = GpuFrames([(view, body)], device)

    @property
    def size_bytes(self) -> int:
        """The memory on the device that this takes."""
        return self._frames.size_bytes

    def decode_into(
        self, out: Array, base: Array | None = None, stream: Any = None, *, verify: bool = True
    ) -> None:
        """Fills `out` with the decoded bytes: see GpuFrames.decode_into."""
        self._frames.decode_into([out], [base], stream, verify=verify)

    def check(self, stream: Any = None) -> None:
        """Waits for the stream. CorruptFrame if what was decoded is damaged."""
        self._frames.check(stream)


def warps_a_group(n_blocks: int, shared_bytes: int, device: Device) -> int:
    """How many warps share the tables of a thread block: as few as let enough warps run.

    shared_bytes: of the tables. Small groups spread over more processors.
    """
    wanted = min(-(-n_blocks // device.n_processors), ENOUGH_WARPS)

    def at_once(n_warps: int) -> int:
        n_groups = device.shared_bytes // (shared_bytes + n_warps * RING_BYTES)
        return n_warps * min(n_groups, _MOST_GROUPS_A_PROCESSOR)

    enough = [each for each in _WARPS_A_GROUP if at_once(each) >= wanted]
    return enough[0] if enough else max(_WARPS_A_GROUP, key=at_once)

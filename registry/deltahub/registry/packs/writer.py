"""Builds packs: frames of one domain are spooled to disk, put, read back and verified.

This module makes no tensor visible. A transaction of switch.py does.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Self

from blake3 import blake3

from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames import (
    MAX_FRAME,
    FrameHeader,
    TensorSpec,
    parse_header,
    split_frames,
)
from deltahub.codecs.frames.pack import PackWriter, verify_pack_hash
from deltahub.codecs.registry import BY_ID
from deltahub.registry import cancellation, failpoints
from deltahub.registry.db.models import Pack
from deltahub.registry.errors import DataLost
from deltahub.registry.packs.encode import PlanOf, Read, encode_part
from deltahub.registry.packs.encoder_generation import (
    NOT_TRIED,
    generation_of,
    standalone_generation,
)
from deltahub.registry.packs.locations import FrameLocation
from deltahub.registry.packs.tensor_reader import RANGE_BYTES, TensorReader
from deltahub.registry.registry import Registry
from deltahub.registry.storage.disk import make_durable, new_file
from deltahub.registry.storage.keys import pack_key
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.refusals import translated_store_errors

# Frames that are prefetched together while a pack is verified.
PREFETCH_FRAMES = 256


@dataclass
class NewTensor:
    """The frames of one tensor, in order of start, and the content ids of their bases."""

    hash: bytes
    size: int
    frames: list[FrameLocation] = field(default_factory=list)
    bases: set[bytes] = field(default_factory=set)

    @property
    def covered_bytes(self) -> int:
        return self.frames[-1].start + self.frames[-1].size if self.frames else 0


@dataclass(frozen=True)
class SealedPacks:
    """Packs that are stored and verified. Their rows say `writing` until a switch."""

    domain_id: int
    pack_ids: tuple[str, ...]
    tensors: dict[bytes, NewTensor]
    n_bytes: int


@dataclass
class _OpenPack:
    id: str
    path: Path
    file: BufferedWriter
    writer: PackWriter
    frames: list[tuple[NewTensor, FrameLocation]]


class PackSpool:
    """Collects frames of one domain into packs. The frames of a tensor are added in order of start.

    A full pack is put and verified at once, so that at most one pack is on the local disk. A tensor
    may span several packs. Leaving the `with` block drops the open pack; packs that were put but
    not switched to are garbage for gc.

    is_decoded: the caller has decoded and hashed the frames that it adds, so comparing the packs'
    hashes is enough to verify them.
    """

    def __init__(
        self, reg: Registry, reader: TensorReader, domain_id: int, *, is_decoded: bool = False
    ) -> None:
        self._reg = reg
        self._reader = reader
        self._domain_id = domain_id
        self._is_decoded = is_decoded
        self._tensors: dict[bytes, NewTensor] = {}
        # Content id -> hash of the bytes so far, for tensors whose frames are not all verified.
        self._hashes: dict[bytes, blake3] = {}
        self._pack_ids: list[str] = []
        self._n_bytes = 0
        self._open: _OpenPack | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open is not None:
            # On a full disk, close() fails while flushing the buffer, whose bytes are not needed.
            with suppress(OSError):
                self._open.file.close()
            with suppress(FileNotFoundError):  # take_file has moved it into the store
                self._reg.disk.unlink(self._open.path)
            self._open = None

    @property
    def is_empty(self) -> bool:
        return not self._tensors

    @property
    def size_bytes(self) -> int:
        """Encoded bytes that were added, including packs that were put already."""
        return self._n_bytes + (self._open.writer.size if self._open is not None else 0)

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._tensors

    def encode(
        self,
        spec: TensorSpec,
        read: Read,
        plan_of: PlanOf | None = None,
        progress: Callable[[int], None] = lambda n: None,
    ) -> None:
        """Encode a tensor at the effort of the settings and add its frames. Memory: four frames.

        plan_of: gives the base plan of each frame; None encodes the tensor without a base.
        progress(n): called after every frame of n decoded bytes; may raise to stop.
        """
        settings = self._reg.settings
        effort, threads = settings.effort, settings.codec_threads
        read_base = self._reader.base_reader(self._domain_id)
        # A frame of this many decoded bytes fits into a pack even if it is stored raw.
        limit = max(8, min(MAX_FRAME, settings.pack_bytes // 2))
        for part in split_frames(spec, limit):
            source = bytearray(part.count * spec.dtype.itemsize)
            read(part.start * spec.dtype.itemsize, memoryview(source))
            plan = None if plan_of is None else plan_of(part)
            frame = encode_part(spec, part, source, plan, read_base, effort, threads)
            size = len(source)
            del source
            self.add(frame, standalone_generation() if plan is None else generation_of(effort))
            progress(size)

    def add(self, frame: bytes | bytearray | memoryview, tried: int = NOT_TRIED) -> None:
        """Append the next frame of its tensor. tried: the generation of its encoder."""
        header = parse_header(frame)
        tensor = self._tensors.setdefault(
            header.tensor, NewTensor(header.tensor, header.tensor_size_bytes)
        )
        if header.start_byte != tensor.covered_bytes or header.tensor_size_bytes != tensor.size:
            raise ValueError(f"the frames of tensor {header.tensor.hex()} do not follow each other")
        if self._open is not None and not self._fits(self._open.writer, len(frame)):
            self._put_pack()
        pack = self._open or self._begin_pack()
        with _disk_errors(pack.path):
            offset = pack.writer.add(frame)
        location = _location(header, pack.id, offset, len(frame), tried)
        pack.frames.append((tensor, location))
        tensor.frames.append(location)
        if header.base is not None:
            tensor.bases.update(header.base.base_ids())

    def seal(self) -> SealedPacks:
        """Put and verify the last pack. Every tensor must have all of its frames by now."""
        for tensor in self._tensors.values():
            if tensor.covered_bytes != tensor.size:
                raise ValueError(f"frames of tensor {tensor.hash.hex()} are missing")
        if self._open is not None:
            self._put_pack()
        assert not self._hashes, "a tensor with all its frames was verified or refused"
        return SealedPacks(self._domain_id, tuple(self._pack_ids), self._tensors, self._n_bytes)

    def _fits(self, writer: PackWriter, n: int) -> bool:
        # Each frame takes 48 bytes in the pack's index (codecs/spec/pack.md).
        return writer.fits(n) and writer.size + n + 48 <= self._reg.settings.pack_bytes

    def _begin_pack(self) -> _OpenPack:
        pack_id = secrets.token_hex(16)
        path = self._reg.scratch / f"{pack_id}.pack"
        with _disk_errors(path):
            file = new_file(self._reg.disk, path)
        self._open = _OpenPack(pack_id, path, file, PackWriter(file), [])
        return self._open

    def _put_pack(self) -> None:
        """Write the row, put the object, verify it: a crash leaves garbage, never a lost object."""
        pack = self._open
        assert pack is not None
        with _disk_errors(pack.path):
            summary = pack.writer.finish()
            make_durable(self._reg.disk, pack.file)
            pack.file.close()
        failpoints.reached("packs.put.before_row")
        with self._reg.db.write_beside() as session:
            session.add(
                Pack(
                    id=pack.id,
                    domain_id=self._domain_id,
                    state="writing",
                    size=summary.size,
                    hash=summary.hash,
                )
            )
        failpoints.reached("packs.put.before_put")
        with translated_store_errors():
            self._reg.store.take_file(pack_key(pack.id), pack.path)
        failpoints.reached("packs.put.after_put")
        self._open = None
        self._verify(pack, summary.size, summary.hash)
        failpoints.reached("packs.put.after_proof")
        self._pack_ids.append(pack.id)
        self._n_bytes += summary.size

    def _verify(self, pack: _OpenPack, size: int, pack_hash: bytes) -> None:
        """Read the object back from the store and verify the hashes of the pack and its tensors."""
        try:
            found = verify_pack_hash(self._stored_chunks(pack.id, size))
        except CodecError as exc:
            raise DataLost(f"pack {pack.id} did not come back as written: {exc}") from exc
        if found != pack_hash:
            raise DataLost(f"pack {pack.id} did not come back from the store as it was written")
        if self._is_decoded:
            return
        scratch = memoryview(bytearray(RANGE_BYTES))
        for i, (tensor, location) in enumerate(pack.frames):
            cancellation.check()
            if i % PREFETCH_FRAMES == 0:
                near = pack.frames[i : i + PREFETCH_FRAMES]
                self._reader.frames.prefetch(location for _, location in near)
            digest = self._hashes.setdefault(tensor.hash, blake3())
            scratch = self._hash_frame(location, digest, scratch)
            if location.start + location.size < tensor.size:
                continue
            del self._hashes[tensor.hash]
            if digest.digest() != tensor.hash:
                raise DataLost(f"frames of tensor {tensor.hash.hex()} decode to other bytes")

    def _hash_frame(
        self, location: FrameLocation, digest: blake3, scratch: memoryview
    ) -> memoryview:
        frame = self._reader.frames.open(location)
        position = 0
        while position < location.size:
            begin, stop = frame.block_range(position, position + RANGE_BYTES)
            low, high = frame.view.span(begin, stop)
            if high - low > scratch.nbytes:
                scratch = memoryview(bytearray(high - low))
            out = scratch[: high - low]
            self._reader.decode_blocks(self._domain_id, frame, begin, stop, out)
            digest.update(out)
            position = high
        return scratch

    def _stored_chunks(self, pack_id: str, size: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(RANGE_BYTES))
        for start in range(0, size, RANGE_BYTES):
            cancellation.check()
            piece = buffer[: min(RANGE_BYTES, size - start)]
            self._reg.store.get_into(pack_key(pack_id), start, piece)
            yield piece


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """A context in which errors of the local disk are raised as registry errors."""
    with translated_store_errors(), translated(path.name):
        yield


def _location(
    header: FrameHeader, pack_id: str, offset: int, length: int, tried: int
) -> FrameLocation:
    codec = BY_ID[header.codec].number
    return FrameLocation(
        header.start_byte, header.size_bytes, pack_id, offset, length, codec, header.tensor, tried
    )

"""Stores the tensors that a job makes: frames first, and their names once they are hashed."""

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from blake3 import blake3

from deltahub.codecs.frames.header import name_tensor
from deltahub.codecs.ids import ZERO_ID
from deltahub.registry.db.session import WriteSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.packs.holds import hold_for_job
from deltahub.registry.packs.switch import insert_tensors, store_and_switch
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry

# A tensor's content id is known only after its last frame was made. More bytes of frames than this
# wait for it on the disk.
MEMORY_BYTES = 32 << 20
# The id in a frame's header until the tensor is hashed. Zeros would name no tensor.
UNNAMED = b"\1" * len(ZERO_ID)


class MadeTensor:
    """The frames of one tensor that is being made, in order, and the hash of its bytes so far."""

    def __init__(self, reg: Registry) -> None:
        # Its file has no name, so that nothing stays behind when the process is killed.
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=str(reg.scratch))
        self._lengths: list[int] = []
        self._hash = blake3(max_threads=reg.settings.codec_threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, frame: bytes | bytearray, decoded: memoryview) -> None:
        """Append a frame whose tensor is UNNAMED, and its decoded bytes."""
        self._hash.update(decoded)
        self._file.write(frame)
        self._lengths.append(len(frame))

    @property
    def content(self) -> bytes:
        """The content id of the bytes so far."""
        return self._hash.digest()

    def named_frames(self) -> Iterator[bytearray]:
        """The frames, with the tensor's content id in their headers."""
        content = self.content
        self._file.seek(0)
        for length in self._lengths:
            frame = bytearray(self._file.read(length))
            name_tensor(frame, content)
            yield frame


class MadePack:
    """A pack of made tensors. They are stored, verified and held for the job by `store`."""

    def __init__(self, reg: Registry, reader: FileReader, domain_id: int, job_id: str) -> None:
        self._reg = reg
        self._domain_id = domain_id
        self._job_id = job_id
        self._spool = PackSpool(reg, reader, domain_id)

    def __enter__(self) -> Self:
        self._spool.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spool.__exit__(kind, error, trace)

    @property
    def size_bytes(self) -> int:
        return self._spool.size_bytes

    def add(self, tensor: MadeTensor, tried: int) -> bytes:
        """Take the tensor's frames, unless the pack has the same bytes; its content id.

        tried: the generation of the frames' encoder (encoder_generation.py).
        """
        content = tensor.content
        if content not in self._spool:
            for frame in tensor.named_frames():
                self._spool.add(frame, tried)
        return content

    def store(self, max_depth: int) -> None:
        """Put the pack, read it back, and make its tensors readable for the job's next steps."""
        if self._spool.is_empty:
            return

        def insert(session: WriteSession, sealed: SealedPacks) -> None:
            ids = insert_tensors(session, sealed, max_depth, job_id=self._job_id)
            ttl_s = self._reg.settings.hold_ttl_s
            hold_for_job(session, ids.values(), self._job_id, ttl_s)

        store_and_switch(self._reg, self._spool, insert, only_adds=True, is_split=True)

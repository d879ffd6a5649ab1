"""Writes packs to disk and sends them to the hub; a later process resumes after a kill."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from deltahub.client.api.endpoints import Api
from deltahub.client.errors import (
    DeltaCycle,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    UploadNotFound,
)
from deltahub.client.local.paths import cache_folder, disk_full
from deltahub.client.push.encode import BasesToRead, Choice, EncodedFrame, encode_all
from deltahub.client.push.upload import Uploader
from deltahub.codecs.errors import CorruptPack, UnsupportedVersion
from deltahub.codecs.frames.pack import MAX_PACK, PackWriter, read_index
from deltahub.codecs.protocol import Effort

# Errors with which the hub refuses a pack; it may still accept the whole file.
Refusal = (InvalidRequest, LimitExceeded, DeltaCycle, NotFound)


# Decoded bytes of a pack. The hub decodes a pack before it answers: within half a minute.
_MAX_RAW_BYTES = 1 << 30


class PackSender:
    """Sends tensors to one repository as packs, at most two of them on disk at a time.

    A complete pack's file is named by its SHA-256 and deleted once the hub has accepted it. So a
    later process sends the packs that it finds, and encodes no tensor twice.
    """

    def __init__(
        self,
        api: Api,
        uploader: Uploader,
        name: str,
        folder: Path,
        effort: Effort = Effort.DEFAULT,
    ) -> None:
        self._api = api
        self._effort = effort
        self._uploader = uploader
        self._name = name
        self._folder = folder

    def spooled(self, missing: Mapping[bytes, int]) -> list[Path]:
        """Packs of an earlier process that have missing tensors (id -> size).

        Deletes other files that it left.
        """
        (self._folder / "writing").unlink(missing_ok=True)
        found = []
        for path in sorted(self._folder.glob("*.pack")):
            if _tensors_in_pack(path) & missing.keys():
                found.append(path)
            else:
                path.unlink()
        return found

    def resume(
        self,
        packs: Iterable[Path],
        missing: Mapping[bytes, int],
        on_done: Callable[[int], None],
    ) -> None:
        """Sends packs of an earlier process. on_done: called with their bytes as they are sent."""
        for path in packs:
            tensors = {tensor.hex(): missing.get(tensor, 0) for tensor in _tensors_in_pack(path)}
            size = path.stat().st_size
            # The hub may refuse one, e.g. if its base is gone; then the caller encodes again.
            with contextlib.suppress(*Refusal):
                self._send(path, path.stem, tensors, size, on_done)

    def send(
        self, choices: Sequence[Choice], sources: BasesToRead, on_done: Callable[[int], None]
    ) -> None:
        """Encodes and sends the tensors. The next pack is encoded while one is sent.

        on_done: called with each tensor's decoded bytes once, as its pack is sent.
        """
        with (
            contextlib.closing(encode_all(choices, sources, self._effort)) as frames,
            ThreadPoolExecutor(1) as sender,
        ):
            pending_send: Future[None] | None = None
            for pack in self._write_packs(frames):
                path, sha256 = pack.finish()
                if pending_send is not None:
                    pending_send.result()
                pending_send = sender.submit(
                    self._send, path, sha256, pack.sizes(), pack.raw_bytes, on_done
                )
            if pending_send is not None:
                pending_send.result()

    def _write_packs(self, frames: Iterator[EncodedFrame]) -> Iterator["_OpenPack"]:
        """Packs, each filled with as many frames as fit, before `finish` is called."""
        pack: _OpenPack | None = None
        current: Choice | None = None
        try:
            for frame in frames:
                is_new = frame.choice is not current
                current = frame.choice
                if pack is not None and not pack.has_room(frame, is_new=is_new):
                    yield pack
                    pack = None
                if pack is None:
                    pack = _OpenPack(self._folder / "writing")
                pack.add(frame)
            if pack is not None:
                yield pack
                pack = None
        finally:
            if pack is not None:
                pack.discard()

    def _send(
        self,
        path: Path,
        sha256: str,
        tensors: dict[str, int],
        raw_bytes: int,
        on_done: Callable[[int], None],
    ) -> None:
        size = path.stat().st_size
        sent = 0

        def advance(n: int) -> None:
            nonlocal sent
            on_done(raw_bytes * (sent + n) // size - raw_bytes * sent // size)
            sent += n

        try:
            self._uploader.upload(path, sha256, size, advance)
            self._accept(sha256, tensors)
        except Refusal:
            path.unlink()  # the hub would refuse it from a later push too
            raise
        path.unlink()

    def _accept(self, sha256: str, tensors: dict[str, int]) -> None:
        try:
            self._api.accept_pack(self._name, sha256)
        except UploadNotFound:
            # The answer to a first try may have been lost after the hub had taken the pack.
            if self._api.query_tensors(self._name, tensors) != tensors.keys():
                raise


class _OpenPack:
    """A pack that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w+b")
        self._hashing = _HashingSink(self._file, path)
        self._writer = PackWriter(self._hashing)  # type: ignore[arg-type]  # it only writes
        self._tensors: dict[bytes, int] = {}
        self.raw_bytes = 0

    def sizes(self) -> dict[str, int]:
        """id in hex -> decoded bytes, of the tensors with frames in this pack."""
        return {tensor.hex(): size for tensor, size in self._tensors.items()}

    def has_room(self, frame: EncodedFrame, *, is_new: bool) -> bool:
        """Whether the frame fits; for a tensor's first frame, whether all of it probably does."""
        choice, length = frame.choice, len(frame.data)
        if not self._writer.fits(length):
            return False
        if is_new and self.raw_bytes + choice.tensor.size > _MAX_RAW_BYTES:
            return False
        expected = int(choice.expected_bytes * 1.1)
        return not is_new or expected >= MAX_PACK or self._writer.fits(max(length, expected))

    def add(self, frame: EncodedFrame) -> None:
        self._writer.add(frame.data)
        self.raw_bytes += frame.raw_bytes
        self._tensors[frame.choice.tensor.tensor] = frame.choice.tensor.size

    def finish(self) -> tuple[Path, str]:
        """Finishes the pack; its path and SHA-256."""
        self._writer.finish()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sha256 = self._hashing.digest.hexdigest()
        final = self._path.with_name(f"{sha256}.pack")
        os.replace(self._path, final)
        return final, sha256

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class _HashingSink:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        try:
            return self._file.write(data)
        except OSError as exc:
            raise disk_full(exc, self._path) from exc


@contextlib.contextmanager
def spool_folder(url: str, name: str) -> Iterator[Path]:
    """A folder for the packs of pushes to one repository; the next push gets the same one.

    While another process uses it, this process gets a temporary one, removed at the end.
    """
    key = hashlib.sha256(f"{url}\n{name}".encode()).hexdigest()[:32]
    folder = cache_folder() / "spool" / key
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            own = folder.with_name(f"{key}-{os.getpid()}")
            own.mkdir(exist_ok=True)
            try:
                yield own
            finally:
                shutil.rmtree(own, ignore_errors=True)
            return
        yield folder
    finally:
        os.close(fd)


def _tensors_in_pack(path: Path) -> set[bytes]:
    """The tensors in a pack's file; empty if it is incomplete."""
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            return os.pread(file.fileno(), length, offset)

        try:
            return {entry.tensor for entry in read_index(read, path.stat().st_size)}
        except (CorruptPack, UnsupportedVersion):
            return set()

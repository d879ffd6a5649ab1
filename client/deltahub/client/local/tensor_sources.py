"""Bytes of tensors that lie on this machine, read by id."""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

from deltahub.client.local.index import FoundTensor, LocalIndex
from deltahub.client.local.paths import read_at, write_at

_MAX_OPEN = 64
_CHUNK = 1 << 20


class MissingTensor(Exception):
    """A tensor is not on this machine, or its file has changed."""

    def __init__(self, tensor: bytes) -> None:
        super().__init__(tensor.hex())
        self.tensor = tensor


class Sources:
    """Local tensors of one push or pull. Safe to use from several threads.

    `read` and `copy_to` do not verify bytes; the caller verifies its result. `is_verified` does.
    """

    def __init__(self, index: LocalIndex) -> None:
        self._index = index
        self._found: dict[bytes, FoundTensor] = {}
        self._verified: set[bytes] = set()
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            for fd in self._open.values():
                os.close(fd)
            self._open.clear()

    def look_up(self, tensors: Iterable[bytes]) -> None:
        """Looks up the tensors that are not known yet in the index."""
        unknown = [tensor for tensor in tensors if tensor not in self._found]
        self._found.update(self._index.find(unknown))

    def add(self, tensor: bytes, path: Path, start: int, size: int) -> None:
        """Adds a verified tensor in a file that is still being written."""
        self._found.setdefault(tensor, FoundTensor(str(path), start, size))
        self._verified.add(tensor)

    def moved(self, path: Path, target: Path) -> None:
        """Replaces the path of a file that was renamed."""
        for tensor, found in self._found.items():
            if found.path == str(path):
                self._found[tensor] = replace(found, path=str(target))

    def forget(self, tensor: bytes) -> None:
        """Drops a tensor whose bytes are wrong, and the index's rows of its file."""
        found = self._found.pop(tensor, None)
        self._verified.discard(tensor)
        if found is not None:
            self._index.forget(found.path)

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._found

    def size_of(self, tensor: bytes) -> int:
        return self._get(tensor).size

    def read(self, tensor: bytes, first_byte: int, out: memoryview) -> None:
        """Fills `out` with the tensor's bytes from `first_byte` on. MissingTensor if it cannot."""
        found = self._get(tensor)
        if first_byte + len(out) > found.size:
            raise MissingTensor(tensor)
        try:
            with self._reading(found.path) as fd:
                read_at(fd, out, found.start + first_byte)
        except (OSError, EOFError) as exc:
            raise MissingTensor(tensor) from exc

    def is_verified(self, tensor: bytes) -> bool:
        """Whether the bytes have the id as their BLAKE3. Reads them once; forgets wrong ones."""
        if tensor in self._verified:
            return True
        if tensor not in self._found:
            return False
        found = self._found[tensor]
        digest = blake3()
        buffer = memoryview(bytearray(min(_CHUNK, found.size)))
        try:
            for done in range(0, found.size, _CHUNK):
                part = buffer[: min(_CHUNK, found.size - done)]
                self.read(tensor, done, part)
                digest.update(part)
        except MissingTensor:
            self.forget(tensor)
            return False
        if digest.digest() != tensor:
            self.forget(tensor)
            return False
        self._verified.add(tensor)
        return True

    def copy_to(self, tensor: bytes, fd: int, offset: int) -> None:
        """Copies the tensor's bytes to `offset` of `fd`. MissingTensor if they cannot be read."""
        found = self._get(tensor)
        done = 0
        try:
            with self._reading(found.path) as source:
                while done < found.size:
                    n = os.copy_file_range(
                        source, fd, found.size - done, found.start + done, offset + done
                    )
                    if n == 0:
                        raise MissingTensor(tensor)
                    done += n
        except OSError:
            # copy_file_range does not work between these files: read and write instead.
            self._copy_by_read_and_write(tensor, fd, offset, found.size)

    def _copy_by_read_and_write(self, tensor: bytes, fd: int, offset: int, size: int) -> None:
        buffer = memoryview(bytearray(min(_CHUNK, size)))
        for done in range(0, size, _CHUNK):
            part = buffer[: min(_CHUNK, size - done)]
            self.read(tensor, done, part)
            write_at(fd, part, offset + done, "the file being rebuilt")

    def _get(self, tensor: bytes) -> FoundTensor:
        found = self._found.get(tensor)
        if found is None:
            raise MissingTensor(tensor)
        return found

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[int]:
        with self._lock:
            fd = self._open.get(path)
            if fd is None:
                fd = os.open(path, os.O_RDONLY)
                self._open[path] = fd
            self._open.move_to_end(path)
            # A duplicate, because another thread may close the kept descriptor.
            own = os.dup(fd)
            while len(self._open) > _MAX_OPEN:
                os.close(self._open.popitem(last=False)[1])
        try:
            yield own
        finally:
            os.close(own)

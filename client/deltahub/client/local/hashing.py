"""SHA-256 of local files and BLAKE3 of their tensors, kept in the local index."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from deltahub.client.errors import LocalFileChanged
from deltahub.client.local.hf_cache import RepositoryCache
from deltahub.client.local.index import LocalIndex, PlacedTensor, Stamp
from deltahub.client.local.paths import read_at
from deltahub.codecs.files.split import FilePlan, plan_file

_CHUNK = 1 << 20


def no_progress(size: int) -> None:
    """A callback for callers without a progress report."""


def sha256_of(
    path: Path, stamp: Stamp, index: LocalIndex, on_read: Callable[[int], None] = no_progress
) -> str:
    """The file's SHA-256 in hex. LocalFileChanged if the file changes meanwhile.

    on_read: called with the number of bytes of each read; not called if the index has the hash.
    """
    known = index.sha256_of(path, stamp)
    if known is not None:
        return known
    digest = hashlib.sha256()
    _feed(path, stamp, 0, stamp.size, digest.update, on_read)
    _check_unchanged(path, stamp)
    index.remember(path, stamp, sha256=digest.hexdigest())
    return digest.hexdigest()


def git_blob_id(fd: int, size: int) -> str:
    """The id that git gives to the file's bytes, in hex."""
    digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    _feed_from(fd, size, digest.update)
    return digest.hexdigest()


def sha256_of_open(fd: int, size: int) -> str:
    """The SHA-256 of the open file's bytes as they are now, in hex."""
    digest = hashlib.sha256()
    _feed_from(fd, size, digest.update)
    return digest.hexdigest()


def plan_of(path: Path, stamp: Stamp, name: str) -> FilePlan:
    """How the file splits into tensors. The ending of `name` chooses the format, as at the hub."""
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            data = os.pread(file.fileno(), length, offset)
            while len(data) < length:
                more = os.pread(file.fileno(), length - len(data), offset + len(data))
                if not more:
                    raise LocalFileChanged(f"{path} became shorter while it was read")
                data += more
            return data

        return plan_file(read, stamp.size, name)


def tensors_of(
    path: Path,
    stamp: Stamp,
    plan: FilePlan,
    index: LocalIndex,
    on_read: Callable[[int], None] = no_progress,
) -> list[PlacedTensor]:
    """The tensors of the plan with their ids, by offset. Errors and on_read as sha256_of."""
    pieces = plan.tensor_pieces()
    known = index.tensors_of(path, stamp)
    wanted = [(piece.start, piece.size) for piece in pieces]
    if known is not None and [(each.start, each.size) for each in known] == wanted:
        return known
    found = []
    for piece in pieces:
        digest = blake3()
        _feed(path, stamp, piece.start, piece.end, digest.update, on_read)
        found.append(PlacedTensor(digest.digest(), piece.start, piece.size))
    _check_unchanged(path, stamp)
    index.remember(path, stamp, tensors=found)
    return found


def index_file(path: Path, name: str, index: LocalIndex) -> None:
    """Adds the tensors of a safetensors file to the index. Other files are not read."""
    stamp = Stamp.of(path.stat())
    if index.tensors_of(path, stamp) is not None:
        return
    plan = plan_of(path, stamp, name)
    if plan.kind == "safetensors":
        tensors_of(path, stamp, plan, index)


def index_snapshot(name: str, commit: str | None, index: LocalIndex) -> None:
    """Adds a revision's safetensors files in the Hugging Face cache to the index."""
    if commit is None or name.count("/") != 1:
        return
    for path, real in RepositoryCache(name).snapshot_files(commit):
        if path.endswith(".safetensors"):
            index_file(real, path, index)


def _feed_from(fd: int, size: int, update: Callable[[memoryview], object]) -> None:
    buffer = memoryview(bytearray(min(_CHUNK, max(1, size))))
    for done in range(0, size, _CHUNK):
        part = buffer[: min(_CHUNK, size - done)]
        read_at(fd, part, done)
        update(part)


def _feed(
    path: Path,
    stamp: Stamp,
    start: int,
    end: int,
    update: Callable[[memoryview], object],
    on_read: Callable[[int], None],
) -> None:
    buffer = memoryview(bytearray(min(_CHUNK, max(1, end - start))))
    with path.open("rb", buffering=0) as file:
        try:
            while start < end:
                part = buffer[: min(_CHUNK, end - start)]
                read_at(file.fileno(), part, start)
                update(part)
                start += len(part)
                on_read(len(part))
        except EOFError as exc:
            raise LocalFileChanged(f"{path} became shorter while it was read") from exc


def _check_unchanged(path: Path, stamp: Stamp) -> None:
    if Stamp.of(path.stat()) != stamp:
        raise LocalFileChanged(f"{path} was written to while it was read; push again")

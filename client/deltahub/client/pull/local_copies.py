"""Copies of a pulled file that are already on this machine, from any repository."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from deltahub.client.errors import LocalFileChanged
from deltahub.client.local.hashing import index_file
from deltahub.client.local.hf_cache import blob_folders
from deltahub.client.local.index import LocalIndex
from deltahub.client.local.paths import read_at, require_room, write_at
from deltahub.client.records import Entry

_CHUNK = 1 << 20


class LocalCopies:
    """Copies whole files from the local index and the Hugging Face cache, and verifies them.

    Safe to use from several threads.
    """

    def __init__(self, index: LocalIndex) -> None:
        self._index = index
        self._blobs = blob_folders()

    def copy(self, entry: Entry, fd: int, work: Path) -> bool:
        """Copies the entry into `fd`, verified by SHA-256; whether it could. work: path of `fd`."""
        for source in self._find(entry):
            require_room(fd, entry.size, work)
            if _copy(source, fd, work, entry):
                return True
            self._index.forget(source)
        return False

    def index_tensors(self, entry: Entry) -> None:
        """Adds the tensors of a copy of the entry to the index, to be copied one by one."""
        for source in self._find(entry):
            try:
                index_file(source, entry.path, self._index)
            except (OSError, LocalFileChanged):
                continue  # deleted or written to meanwhile
            return

    def _find(self, entry: Entry) -> Iterator[Path]:
        if entry.size == 0:
            return
        seen = set()
        for known in self._index.find_files(entry.sha256):
            seen.add(Path(known))
            yield Path(known)
        etags = {entry.etag, entry.sha256, entry.git_blob_id or ""}
        for folder in self._blobs:
            for etag in filter(str.isalnum, etags):
                blob = folder / etag
                if blob.is_file() and blob.stat().st_size == entry.size and blob not in seen:
                    yield blob


def _copy(source: Path, fd: int, work: Path, entry: Entry) -> bool:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(_CHUNK, entry.size)))
    try:
        file = source.open("rb", buffering=0)
    except OSError:
        return False  # deleted meanwhile
    with file:
        for done in range(0, entry.size, _CHUNK):
            part = buffer[: min(_CHUNK, entry.size - done)]
            try:
                read_at(file.fileno(), part, done)
            except (OSError, EOFError):
                return False
            digest.update(part)
            write_at(fd, part, done, work)
    return digest.hexdigest() == entry.sha256

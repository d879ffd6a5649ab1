"""Finds files of a revision that are Git LFS pointers instead of weights."""

from collections.abc import Iterable
from typing import Final

from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.lfs_pointer import MAX_POINTER_BYTES, pointed_size
from deltahub.registry import cancellation
from deltahub.registry.catalog.entries import EntryInfo
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import RegistryError
from deltahub.registry.names import entry_mode
from deltahub.registry.storage.base import StoreError

# Small files with the name of weights that are read, for a report or a commit.
_MOST_READ: Final = 100


def pointers_among(reader: FileReader, entries: Iterable[EntryInfo]) -> dict[str, int]:
    """Path -> bytes of the file that its pointer stands for, of entries that are pointers.

    Of a revision with very many small files named as weights, only the first ones are read.
    """
    found: dict[str, int] = {}
    n_read = 0
    for entry in entries:
        if entry.file.size > MAX_POINTER_BYTES or entry_mode(entry.path, 1) != "lfs":
            continue
        n_read += 1
        if n_read > _MOST_READ:
            break
        cancellation.check()
        try:
            data = b"".join(reader.stream_file(entry.file, 0, entry.file.size))
        except (RegistryError, CodecError, StoreError):
            continue  # lost, or away: what is wrong with it is told elsewhere
        size = pointed_size(data)
        if size is not None:
            found[entry.path] = size
    return found


def sentence_on(found: dict[str, int]) -> str:
    """What is wrong with a revision that has these pointers, and what to do."""
    path = min(found)
    others = f" and {len(found) - 1} more files" if len(found) > 1 else ""
    return (
        f"{path}{others}: a Git LFS pointer, not the file of {found[path]} bytes that it stands"
        " for: nothing can load it. Run `git lfs pull` in the clone and push again"
    )

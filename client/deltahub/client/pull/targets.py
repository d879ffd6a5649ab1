"""Where a pull puts files: the Hugging Face cache, or a plain folder."""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deltahub.client.errors import InvalidArgument, LocalFileChanged
from deltahub.client.local.hashing import sha256_of
from deltahub.client.local.hf_cache import RepositoryCache, checked_path
from deltahub.client.local.index import LocalIndex, Stamp
from deltahub.client.local.paths import cache_folder
from deltahub.client.progress import count_of
from deltahub.client.pull.written_files import PulledFiles
from deltahub.client.records import Entry

# A refusal does not name more files than that.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Place:
    """Paths of one file: its final name, and what exists only until it is finished.

    `work` is not `<etag>.incomplete`: huggingface_hub goes on from the *length* of a file of
    that name, and ours has its full length from the beginning.
    """

    final: Path
    work: Path
    journal: Path
    lock: Path


class PullTarget(Protocol):
    """A place for one revision."""

    path: Path

    def place(self, entry: Entry) -> Place: ...

    def is_present(self, entry: Entry) -> bool: ...

    def begin(self, missing: Sequence[Entry], *, is_overwriting: bool) -> tuple[str, ...]:
        """The paths of somebody's own files that the pull will replace. InvalidArgument if there
        are some and they are to stay."""
        ...

    def publish(self, entry: Entry) -> None: ...

    def finish(self, revision: str, entries: Sequence[Entry]) -> tuple[str, ...]:
        """Ends the pull of these entries; paths of an earlier one that are none of them."""
        ...


def _holds(path: Path, entry: Entry, index: LocalIndex) -> bool:
    """Whether the file is the entry; it is read if it may have changed since it was proved."""
    final = path.resolve()  # as the index knows it
    try:
        stamp = Stamp.of(final.stat())
        if not final.is_file() or stamp.size != entry.size:
            return False
        return sha256_of(final, stamp, index) == entry.sha256
    except (FileNotFoundError, NotADirectoryError, LocalFileChanged):
        return False  # another process is about to replace it, perhaps: looked at again then


class CacheTarget:
    """The Hugging Face cache."""

    def __init__(self, cache: RepositoryCache, commit: str, index: LocalIndex) -> None:
        self._cache = cache
        self._index = index
        self._commit = commit
        self.path = cache.snapshot(commit)

    def place(self, entry: Entry) -> Place:
        blob = self._cache.blob(entry.etag)
        return Place(
            final=blob,
            work=blob.with_name(f"{blob.name}.deltahub-incomplete"),
            journal=blob.with_name(f"{blob.name}.deltahub-journal"),
            lock=self._cache.lock_path(entry.etag),
        )

    def is_present(self, entry: Entry) -> bool:
        return _holds(self._cache.blob(entry.etag), entry, self._index)

    def begin(self, missing: Sequence[Entry], *, is_overwriting: bool) -> tuple[str, ...]:
        return ()  # nobody's own files lie among the cache's

    def publish(self, entry: Entry) -> None:
        self._cache.link(self._commit, entry.path, entry.etag)

    def finish(self, revision: str, entries: Sequence[Entry]) -> tuple[str, ...]:
        self.path.mkdir(parents=True, exist_ok=True)
        self._cache.set_ref(revision, self._commit)
        return ()


class FolderTarget:
    """A folder of ordinary files. What is there with the right SHA-256 is kept; what a pull left
    there is replaced, and somebody's own files only when that was asked for.
    """

    def __init__(self, folder: Path, index: LocalIndex) -> None:
        if folder.exists() and not folder.is_dir():
            raise InvalidArgument(f"{folder} is not a folder")
        self.path = folder
        self._index = index
        key = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()
        self._pulled = PulledFiles(key)

    def place(self, entry: Entry) -> Place:
        final = self.path / checked_path(entry.path)
        # The same folder tree that a push skips. The lock lies elsewhere: it can never be
        # removed safely, and should not stay in somebody's folder.
        key = hashlib.sha256(os.fsencode(final.absolute())).hexdigest()
        # Named by place and contents: two paths with the same bytes are written at once.
        work = self.path / ".cache" / "deltahub" / f"{entry.sha256}-{key[:16]}"
        return Place(
            final=final,
            work=work.with_name(f"{work.name}.incomplete"),
            journal=work.with_name(f"{work.name}.journal"),
            lock=cache_folder() / "locks" / f"{key}.lock",
        )

    def is_present(self, entry: Entry) -> bool:
        return _holds(self.place(entry).final, entry, self._index)

    def begin(self, missing: Sequence[Entry], *, is_overwriting: bool) -> tuple[str, ...]:
        foreign = tuple(entry.path for entry in missing if self._is_foreign(entry))
        if foreign and not is_overwriting:
            names = ", ".join(foreign[:_MOST_NAMED]) + (", ..." if foreign[_MOST_NAMED:] else "")
            raise InvalidArgument(
                f"{self.path} has {count_of(len(foreign), 'file')} that no pull left so, and this "
                f"one would replace: {names}; --overwrite (overwrite=True) says that this is meant"
            )
        # Before the first is replaced: a pull that dies then has not made them somebody's own.
        self._pulled.add((entry.path, entry.sha256) for entry in missing)
        return foreign

    def _is_foreign(self, entry: Entry) -> bool:
        """Whether something else lies in the entry's place, not as a pull left it."""
        final = self.place(entry).final
        if not os.path.lexists(final):
            return False
        if not final.is_file():
            return True
        # Another pull may have put the very file there since we looked.
        known = self._pulled.known.get(entry.path, frozenset()) | {entry.sha256}
        return sha256_of(final, Stamp.of(final.stat()), self._index) not in known

    def publish(self, entry: Entry) -> None:
        pass

    def finish(self, revision: str, entries: Sequence[Entry]) -> tuple[str, ...]:
        self.path.mkdir(parents=True, exist_ok=True)
        files = {entry.path: entry.sha256 for entry in entries}
        earlier = self._pulled.known.keys() - files.keys()
        left = tuple(sorted(path for path in earlier if os.path.lexists(self.path / path)))
        self._pulled.replace(files, left)
        for folder in (self.path / ".cache" / "deltahub", self.path / ".cache"):
            with contextlib.suppress(OSError):  # not there, or not empty: unfinished files
                folder.rmdir()
        return left

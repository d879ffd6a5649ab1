"""Targets of a pull: the Hugging Face cache or a folder of ordinary files."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deltahub.client.errors import InvalidArgument, LocalFileChanged
from deltahub.client.local.hashing import sha256_of
from deltahub.client.local.hf_cache import RepositoryCache, checked_path
from deltahub.client.local.index import LocalIndex, Stamp
from deltahub.client.local.paths import cache_folder, make_folders
from deltahub.client.progress import count_of
from deltahub.client.pull.safe_paths import check_links, check_twins
from deltahub.client.pull.written_files import PulledFiles
from deltahub.client.records import Entry
from deltahub.codecs.files.paths import git_head

# File names in one error message.
_MAX_NAMED = 5


@dataclass(frozen=True)
class Place:
    """Paths of one file: its final name, and the files that exist while it is pulled.

    `work` is not `<etag>.incomplete`, because huggingface_hub resumes such a file from its length
    and ours has its full length from the beginning.
    """

    final: Path
    work: Path
    journal: Path
    lock: Path


class PullTarget(Protocol):
    """A folder for the files of one revision. root: the folder that the user chose."""

    path: Path
    root: Path

    def check(self, entries: Sequence[Entry]) -> None:
        """InvalidArgument, before anything is written, if it cannot hold these files safely."""
        ...

    def place(self, entry: Entry) -> Place: ...

    def is_present(self, entry: Entry) -> bool: ...

    def begin(self, missing: Sequence[Entry], *, is_overwriting: bool) -> tuple[str, ...]:
        """The paths of the user's own files that the pull will replace. InvalidArgument if there
        are any, unless is_overwriting."""
        ...

    def publish(self, entry: Entry) -> None: ...

    def finish(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        """Ends the pull of these entries. Paths that an earlier pull wrote and this one lacks."""
        ...


def _has_entry(path: Path, entry: Entry, index: LocalIndex) -> bool:
    """Whether the file has the entry's SHA-256. It is read if it changed since its last hash."""
    final = path.resolve()  # the path that the index uses
    try:
        stamp = Stamp.of(final.stat())
        if not final.is_file() or stamp.size != entry.size:
            return False
        return sha256_of(final, stamp, index) == entry.sha256
    except (FileNotFoundError, NotADirectoryError, LocalFileChanged):
        return False  # another process may be replacing it; the pull checks again under its lock


class CacheTarget:
    """The Hugging Face cache."""

    def __init__(
        self, cache: RepositoryCache, revision: str, commit: str, index: LocalIndex
    ) -> None:
        self._cache = cache
        self._index = index
        self._revision = revision
        self._commit = commit
        self.root = cache.root
        self.path = cache.snapshot(commit)

    def check(self, entries: Sequence[Entry]) -> None:
        ref = self._cache.ref_path(self._revision, self._commit)
        folders = [self.root / "blobs", self.path, *([ref.parent] if ref else [])]
        check_links(self.root, [*folders, *((self.path / each.path).parent for each in entries)])
        check_twins(self.path, [each.path for each in entries])

    def place(self, entry: Entry) -> Place:
        blob = self._cache.blob(entry.etag)
        return Place(
            final=blob,
            work=blob.with_name(f"{blob.name}.deltahub-incomplete"),
            journal=blob.with_name(f"{blob.name}.deltahub-journal"),
            lock=self._cache.lock_path(entry.etag),
        )

    def is_present(self, entry: Entry) -> bool:
        return _has_entry(self._cache.blob(entry.etag), entry, self._index)

    def begin(self, missing: Sequence[Entry], *, is_overwriting: bool) -> tuple[str, ...]:
        return ()  # the cache has no files of the user's own

    def publish(self, entry: Entry) -> None:
        self._cache.link(self._commit, entry.path, entry.etag)

    def finish(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        make_folders(self.root, self.path)
        self._cache.set_ref(self._revision, self._commit)
        return ()


class FolderTarget:
    """A folder of ordinary files. A file with the right SHA-256 is kept. An unchanged file of an
    earlier pull is replaced; the user's own files only with is_overwriting.
    """

    def __init__(self, folder: Path, index: LocalIndex) -> None:
        if folder.exists() and not folder.is_dir():
            raise InvalidArgument(f"{folder} is not a folder")
        self.path = self.root = folder
        self._index = index
        key = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()
        self._pulled = PulledFiles(key)

    def check(self, entries: Sequence[Entry]) -> None:
        paths = [entry.path for entry in entries]
        work = self.path / ".cache" / "deltahub"
        check_links(self.path, [work, *((self.path / path).parent for path in paths)])
        check_twins(self.path, paths)
        # An earlier pull may have written the rest of it.
        head = git_head({*paths, *self._existing()})
        if head is not None:
            raise InvalidArgument(
                f"nothing was written: with these files git would take {self.path} for a"
                f" repository because of {head!r}, and run the programs that its config names;"
                " pull into another folder"
            )

    def _existing(self) -> Iterator[str]:
        """Paths of earlier pulls, and of anything at the top that makes a git repository."""
        yield from (path for path in self._pulled.known if os.path.lexists(self.path / path))
        for name in ("HEAD", "commondir"):
            if os.path.lexists(self.path / name):
                yield name
        for name in ("objects", "refs"):
            if (self.path / name).is_dir():
                yield f"{name}/x"

    def place(self, entry: Entry) -> Place:
        final = self.path / checked_path(entry.path)
        # A push skips .cache. The lock lies outside the folder, because it can never be removed
        # safely and should not stay in the user's folder.
        key = hashlib.sha256(os.fsencode(final.absolute())).hexdigest()
        # Named by path and contents, because paths with equal bytes are written in parallel.
        work = self.path / ".cache" / "deltahub" / f"{entry.sha256}-{key[:16]}"
        return Place(
            final=final,
            work=work.with_name(f"{work.name}.incomplete"),
            journal=work.with_name(f"{work.name}.journal"),
            lock=cache_folder() / "locks" / f"{key}.lock",
        )

    def is_present(self, entry: Entry) -> bool:
        return _has_entry(self.place(entry).final, entry, self._index)

    def begin(self, missing: Sequence[Entry], *, is_overwriting: bool) -> tuple[str, ...]:
        users_own = tuple(entry.path for entry in missing if self._is_users_own(entry))
        if users_own and not is_overwriting:
            names = ", ".join(users_own[:_MAX_NAMED]) + (", ..." if users_own[_MAX_NAMED:] else "")
            raise InvalidArgument(
                f"{self.path} has {count_of(len(users_own), 'file')} that no pull left so, and this"
                f" one would replace: {names}; --overwrite (overwrite=True) says that this is meant"
            )
        # Recorded before any is replaced: files of a killed pull must not count as the user's.
        self._pulled.add((entry.path, entry.sha256) for entry in missing)
        return users_own

    def _is_users_own(self, entry: Entry) -> bool:
        """Whether the entry's path has a file that no pull wrote, or that changed since."""
        final = self.place(entry).final
        if not os.path.lexists(final):
            return False
        if not final.is_file():
            return True
        # Another pull may have written this very file since the last check.
        known = self._pulled.known.get(entry.path, frozenset()) | {entry.sha256}
        return sha256_of(final, Stamp.of(final.stat()), self._index) not in known

    def publish(self, entry: Entry) -> None:
        pass

    def finish(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        self.path.mkdir(parents=True, exist_ok=True)
        files = {entry.path: entry.sha256 for entry in entries}
        earlier = self._pulled.known.keys() - files.keys()
        left = tuple(sorted(path for path in earlier if os.path.lexists(self.path / path)))
        self._pulled.replace(files, left)
        for folder in (self.path / ".cache" / "deltahub", self.path / ".cache"):
            with contextlib.suppress(OSError):  # absent, or has unfinished files
                folder.rmdir()
        return left

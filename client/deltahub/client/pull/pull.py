"""Pull: a revision's files into the Hugging Face cache or a folder, every byte verified."""

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from deltahub.client.api.endpoints import Api
from deltahub.client.api.recipes import StoredRecipe, read_recipe
from deltahub.client.errors import BadResponse, DiskFull, NotReady, VerificationFailed
from deltahub.client.local.hashing import (
    git_blob_id,
    index_file,
    index_snapshot,
    sha256_of_open,
)
from deltahub.client.local.hf_cache import RepositoryCache, locked
from deltahub.client.local.index import LocalIndex, PlacedTensor, Stamp
from deltahub.client.local.paths import cache_folder, make_folders, require_room, sync_folder
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.names import is_repository_name
from deltahub.client.progress import Progress, human_size
from deltahub.client.pull.bases_first import find_bases
from deltahub.client.pull.journal import Journal
from deltahub.client.pull.links.source import LinkSource
from deltahub.client.pull.local_copies import LocalCopies
from deltahub.client.pull.rebuild import Rebuild, Target, slots_of
from deltahub.client.pull.safe_paths import check_entries
from deltahub.client.pull.targets import CacheTarget, FolderTarget, Place, PullTarget
from deltahub.client.pull.whole_file import WholeFile
from deltahub.client.records import Entry, PullResult, Revision

# A smaller file is fetched whole, because its recipe would cost more than it saves.
SMALL_FILE = 1 << 20
_SMALL_WORKERS = 4


class Pull:
    """One pull. A file gets its final name only when it is complete, verified and synced."""

    def __init__(
        self,
        api: Api,
        index: LocalIndex,
        progress: Progress,
        name: str,
        revision: str,
        *,
        is_sha256_asked: bool,
        has_links: bool = True,
        siblings: int = 1,
        only: Collection[str] | None = None,
    ) -> None:
        """siblings: models of one base that are pulled together: a base that is not here is pulled
        too, where that moves fewer bytes. 0: pull no base.

        is_sha256_asked: read files that are in place, too, even if they have not changed since
        their SHA-256 was taken. only: the paths to pull; None for all.
        """
        self._api = api
        self._has_links = has_links
        self._siblings = siblings
        self._only = only
        self._recipes: dict[str, StoredRecipe] = {}
        self._links = LinkSource(api.transport.url, progress.note, is_asked=has_links)
        self._index = index
        self._progress = progress
        self._name = name
        self._revision = revision
        self._is_sha256_asked = is_sha256_asked
        self._sources = Sources(index)
        self._copies = LocalCopies(index)
        self._lock = threading.Lock()
        self._received = 0
        self._reused = 0

    def run(self, to: Path | None, *, is_overwriting: bool = False) -> PullResult:
        found = self._api.get_revision(self._name, self._revision)
        check_entries(found.entries)
        if self._only is not None:
            kept = tuple(entry for entry in found.entries if entry.path in self._only)
            found = replace(found, entries=kept)
        target: PullTarget = (
            CacheTarget(RepositoryCache(self._name), self._revision, found.commit, self._index)
            if to is None
            else FolderTarget(to, self._index)
        )
        target.check(found.entries)
        try:
            missing = self._missing(found, target)
            replaced = target.begin(missing, is_overwriting=is_overwriting)
            with self._api.transport.reporting_waits(self._progress.note):
                self._pull_files(found, missing, target)
        finally:
            self._sources.close()
            self._links.close()
        left = target.finish(found.entries)
        return PullResult(
            repository=self._name,
            revision=self._revision,
            commit=found.commit,
            path=target.path,
            files=len(found.entries),
            size=sum(entry.size for entry in found.entries),
            received=self._received,
            reused=self._reused,
            fetched_files=tuple(sorted(entry.path for entry in missing)),
            replaced=replaced,
            left=left,
            linked=self._links.received,
            link_failures=self._links.failures,
        )

    def _missing(self, found: Revision, target: PullTarget) -> list[Entry]:
        """The entries whose files are not in place. Publishes the others."""
        missing = []
        for entry in found.entries:
            if self._is_present(entry, target):
                target.publish(entry)
                self._count(0, entry.size)
            else:
                missing.append(entry)
        return missing

    def _pull_files(self, found: Revision, missing: list[Entry], target: PullTarget) -> None:
        if not missing:
            self._progress.note(f"{self._name}@{found.commit[:12]} is here already")
            return
        if any(entry.size >= SMALL_FILE for entry in missing):
            self._index_base(found)
            if self._siblings:
                self._pull_bases(found, missing)
        total = sum(entry.size for entry in missing)
        small = [entry for entry in missing if entry.size < SMALL_FILE]
        large = [entry for entry in missing if entry.size >= SMALL_FILE]
        with self._progress.stage(f"pull {self._name}", total) as stage:

            def fetch(entry: Entry) -> None:
                self._fetch(found.commit, entry, target, stage.advance)

            with ThreadPoolExecutor(_SMALL_WORKERS) as pool:
                list(pool.map(fetch, small))
            for entry in large:
                fetch(entry)

    def _is_present(self, entry: Entry, target: PullTarget) -> bool:
        if not target.is_present(entry):
            return False
        if not self._is_sha256_asked:
            return True
        with target.place(entry).final.open("rb") as file:
            return sha256_of_open(file.fileno(), entry.size) == entry.sha256

    def _index_base(self, found: Revision) -> None:
        """Adds the declared base and the parent revision in the Hugging Face cache to the index."""
        index_snapshot(self._name, found.parent, self._index)
        base = (found.base.declared or "").partition("@")[0]
        if is_repository_name(base):
            index_snapshot(base, found.base.commit, self._index)

    def _pull_bases(self, found: Revision, missing: list[Entry]) -> None:
        """Pulls what the missing files are differences from, where that moves fewer bytes."""
        for entry in missing:
            recipe = None
            if entry.path.endswith(".safetensors"):
                recipe = self._recipe(found.commit, entry)
            if recipe is not None:
                self._recipes[entry.path] = recipe
        recipes = self._recipes.values()
        bases = find_bases(self._api, self._sources, self._name, found, recipes, self._siblings)
        if bases is None:
            return
        for each in bases.pulls:
            self._progress.note(
                f"pulling {each.name}@{each.commit[:12]} first: {human_size(bases.bases)} and a"
                f" difference of {human_size(bases.difference)}, instead of"
                f" {human_size(bases.without)}"
            )
            pull = Pull(
                self._api,
                self._index,
                self._progress,
                each.name,
                each.commit,
                is_sha256_asked=False,
                has_links=self._has_links,
                siblings=0,
                only=each.paths,
            )
            try:
                result = pull.run(None)
            except DiskFull as exc:
                self._progress.note(f"without {each.name}, which finds no room: {exc}")
                return
            self._count(result.received, 0)
            index_snapshot(each.name, each.commit, self._index)
        self._recipes.clear()  # the hub may have stored the files otherwise meanwhile

    # -- one file --------------------------------------------------------------------------

    def _fetch(
        self, commit: str, entry: Entry, target: PullTarget, on_done: Callable[[int], None]
    ) -> None:
        place = target.place(entry)
        for folder in {place.final.parent, place.work.parent}:
            make_folders(target.root, folder)
        # The second lock is for pulls of the same bytes into other folders or by other names: the
        # first of them fetches the bytes, and the others copy them.
        same_bytes = cache_folder() / "locks" / f"{entry.sha256}.lock"
        with locked(place.lock), locked(same_bytes):
            if target.is_present(entry) and not self._is_sha256_asked:
                on_done(entry.size)  # another process has pulled it meanwhile
                self._count(0, entry.size)
            else:
                self._make(commit, entry, place, on_done)
        target.publish(entry)

    def _make(
        self, commit: str, entry: Entry, place: Place, on_done: Callable[[int], None]
    ) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(place.work, flags, 0o644)
        try:
            tensors: list[PlacedTensor] | None = None
            if self._copy(entry, fd, place):
                on_done(entry.size)
                self._count(0, entry.size)
            else:
                tensors = self._fetch_into(fd, commit, entry, place, on_done)
            _check_hashes(fd, entry, is_rebuilt=tensors is not None)
            os.fsync(fd)
            stamp_inode = os.fstat(fd)
        except VerificationFailed:
            # Bytes that were wrong twice are not kept for a later pull.
            place.work.unlink(missing_ok=True)
            place.journal.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        os.replace(place.work, place.final)
        sync_folder(place.final.parent)
        place.journal.unlink(missing_ok=True)
        self._sources.moved(place.work, place.final)
        final = place.final.resolve()
        self._index.remember(final, Stamp.of(stamp_inode), sha256=entry.sha256, tensors=tensors)
        if tensors is None and entry.size >= SMALL_FILE:
            index_file(final, entry.path, self._index)

    def _copy(self, entry: Entry, fd: int, place: Place) -> bool:
        """Copies the whole file from this machine; whether it could."""
        if place.journal.exists():
            return False  # an earlier pull left a part of it
        if _has_recipe(entry) and entry.path.endswith(".safetensors"):
            # Copying tensors is quicker than verifying the whole file by its SHA-256.
            self._copies.index_tensors(entry)
            return False
        return self._copies.copy(entry, fd, place.work)

    def _fetch_into(
        self, fd: int, commit: str, entry: Entry, place: Place, on_done: Callable[[int], None]
    ) -> list[PlacedTensor] | None:
        recipe = self._recipes.pop(entry.path, None) or self._recipe(commit, entry)
        identity = recipe.recipe.id.hex() if recipe else f"sha256:{entry.sha256}"
        journal = Journal(place.journal, identity)
        try:
            return self._fill(fd, commit, entry, place, journal, recipe, on_done)
        finally:
            journal.close()

    def _fill(
        self,
        fd: int,
        commit: str,
        entry: Entry,
        place: Place,
        journal: Journal,
        recipe: StoredRecipe | None,
        on_done: Callable[[int], None],
    ) -> list[PlacedTensor] | None:
        require_room(fd, entry.size, place.work)
        target = Target(fd, place.work, self._name, commit, entry)
        if recipe is None:
            whole = WholeFile(self._api, target, journal, on_done)
            whole.run()
            self._count(whole.received, whole.reused)
            return None
        rebuild = Rebuild(self._api, target, journal, self._sources, self._links, on_done=on_done)
        rebuild.run(recipe.recipe, recipe.stored)
        self._count(rebuild.received, rebuild.reused)
        slots, _ = slots_of(recipe.recipe)
        return [PlacedTensor(slot.tensor, slot.start, slot.size) for slot in slots]

    def _recipe(self, commit: str, entry: Entry) -> StoredRecipe | None:
        """The file's recipe and its stored tensors; None if the hub has no recipe for it yet."""
        if not _has_recipe(entry):
            return None
        for is_last in (False, True):
            try:
                found = read_recipe(self._api, self._name, commit, entry)
            except NotReady:
                return None
            except (BadResponse, VerificationFailed):
                if is_last:  # the first failure may be a fault of the network
                    raise
                continue
            self._count(found.n_bytes, 0)
            self._links.begin(found.link_origin)
            return found
        raise AssertionError("unreachable: the last try returns or raises")

    def _count(self, received: int, reused: int) -> None:
        with self._lock:
            self._received += received
            self._reused += reused


def _check_hashes(fd: int, entry: Entry, *, is_rebuilt: bool) -> None:
    """VerificationFailed if the bytes on the disk do not have the entry's hashes.

    A file that was copied or came whole has its SHA-256 already. An ETag that is a git blob id is
    checked for all, because other clients that share the cache take a file for the one that its
    ETag names.
    """
    if is_rebuilt and sha256_of_open(fd, entry.size) != entry.sha256:
        raise VerificationFailed(
            f"{entry.path} is not written: every tensor of it came with the right hash, but the"
            " file has another SHA-256 than was pushed; pull again, and if that fails too, the"
            " hub's operator should run `deltahub fsck --read-data`"
        )
    if len(entry.etag) != len(entry.sha256) and git_blob_id(fd, entry.size) != entry.etag:
        raise VerificationFailed(f"{entry.path} has another git id than the hub promised")


def _has_recipe(entry: Entry) -> bool:
    return entry.size >= SMALL_FILE and entry.state == "ingested"

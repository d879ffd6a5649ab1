"""The target of a restore: an empty folder, and an empty bucket if the objects go there.

A restore begins when the file `restore.unfinished` is in the folder. Until then everything that may
be wrong with the target is checked, and a target that is refused is left as it was.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from deltahub.registry.data_folder import RESTORE, SERVE_LOCK, WORKER_LOCK, DataFolderLock
from deltahub.registry.maintenance.backup.snapshot import Snapshot
from deltahub.registry.storage.base import Store, StoreError
from deltahub.registry.storage.local import translated
from deltahub.registry.store_url import S3Location, overlap
from deltahub.registry.stores.current import UNFINISHED
from deltahub.registry.stores.restore_marker import (
    MARKER_IN_WORK,
    RestoreMarker,
    read_marker,
    write_marker,
)

# A copy of the database that is read before the restore begins; random digits follow.
LOOKED_AT: Final = "restore.look-"
_LOCKS: Final = (SERVE_LOCK, WORKER_LOCK)


class RestoreRefused(Exception):
    """The target is not empty, or is no target for this snapshot."""

    code = "restore_refused"


class TargetFolder:
    """The data folder of a restore, to which it has the locks of a hub.

    is_new: this process began the restore, and none before it.
    """

    def __init__(self, path: Path, made: list[Path]) -> None:
        """made: the folders that were made for it, the outermost first."""
        self.path = path
        self.is_new = False
        self._made = made
        self._is_begun = False
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._before = set(os.listdir(self._descriptor))

    def begun(self, snapshot: Snapshot, url: str) -> RestoreMarker | None:
        """The marker of an earlier attempt, which had the same target; None if there was none."""
        with translated(str(self.path)):
            _require_empty(self.path)  # again, because a hub may have come before the lock
        try:
            marker = read_marker(self.path)
        except ValueError as exc:
            text = f"{self.path / UNFINISHED} is damaged ({exc}): delete {self.path}"
            raise RestoreRefused(text) from exc
        if marker is None:
            return None
        if (marker.snapshot, marker.hub, marker.store_url) != (snapshot.name, snapshot.hub, url):
            where = f" to {marker.store_url}" if marker.store_url else ""
            raise RestoreRefused(
                f"{self.path} holds half of a restore of snapshot {marker.snapshot}{where}: repeat"
                " that one with --snapshot and --store-url, or delete the folder"
            )
        self._is_begun = True
        return marker

    def begin(self, snapshot: Snapshot, url: str) -> RestoreMarker:
        """Make the marker. From here on the restore can only be repeated."""
        with translated(str(self.path)):
            # The checks may have taken minutes. Another restore may have a new folder of this name.
            if not os.path.samestat(os.fstat(self._descriptor), self.path.stat()):
                raise RestoreRefused(f"{self.path} was deleted meanwhile: run the restore again")
            _require_empty(self.path)
            os.fchmod(self._descriptor, 0o700)
        marker = RestoreMarker(snapshot.name, snapshot.hub, url, secrets.token_hex(16))
        self._is_begun = self.is_new = True
        write_marker(self.path, marker)
        return marker

    def give_up(self) -> None:
        """Take the marker away again, because nothing was copied."""
        for name in (MARKER_IN_WORK, UNFINISHED):
            with translated(str(self.path)), suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._descriptor)
        self._is_begun = self.is_new = False

    def leave(self) -> None:
        """Leave the folder as it was found, unless a restore has begun in it.

        Call it with the locks. Names count in the folder that was locked, whatever bears its path
        by now.
        """
        if self._is_begun:
            return
        for name in set(os.listdir(self._descriptor)) - self._before:
            if name in _LOCKS or name.startswith(LOOKED_AT):
                os.unlink(name, dir_fd=self._descriptor)
        for folder in reversed(self._made):
            folder.rmdir()

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def own_folder(path: Path) -> Iterator[TargetFolder]:
    """Make the folder if it is not there, and have it to oneself. A wrong one is not changed."""
    with translated(str(path)):
        if path.exists():
            _require_empty(path)
        missing = [folder for folder in (path, *path.parents) if not folder.exists()][::-1]
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = TargetFolder(path, missing)
    try:
        with DataFolderLock(path, SERVE_LOCK, RESTORE), DataFolderLock(path, WORKER_LOCK, RESTORE):
            try:
                yield folder
            finally:
                with suppress(OSError):  # what cannot be taken away harms nothing
                    folder.leave()
    finally:
        folder.close()


def _require_empty(path: Path) -> None:
    """RestoreRefused unless the folder is empty, or an earlier restore began in it."""
    if (path / UNFINISHED).exists():
        return
    for found in path.iterdir():
        # What an attempt leaves that was cut short before it wrote its marker.
        if found.name not in (*_LOCKS, MARKER_IN_WORK) and not found.name.startswith(LOOKED_AT):
            raise RestoreRefused(
                f"{path} is not empty ({found.name}): a restore overwrites nothing. Name an"
                " empty folder with --data-dir, or move this one away"
            )


def require_ours(data_dir: Path, marker: RestoreMarker) -> None:
    """RestoreRefused if the folder was deleted, and is another restore's or a hub's by now."""
    try:
        found = read_marker(data_dir)
    except ValueError:
        found = None
    if found is None or found.mark != marker.mark:
        raise RestoreRefused(
            f"{data_dir / UNFINISHED} is gone, or of another restore: this one ends, and changes"
            " nothing more there"
        )


def require_apart(url: str, lost_places: list[str], endpoint: str | None) -> None:
    """RestoreRefused if the objects would go below or around a bucket's prefix of the lost hub.

    The lost hub may come back, and would take the objects below its prefix for its own. The same
    prefix may be used if it is empty. endpoint: of URLs that name none.
    """
    for lost in lost_places:
        target, other = S3Location.parse(url), S3Location.parse(lost)
        if target.prefix != other.prefix and overlap(url, lost, endpoint):
            raise RestoreRefused(
                f"{url} and {lost}, where the hub in the backup has or had its objects, lie one in"
                " the other, and that hub may come back: name a prefix beside it, or another"
                " bucket, with --store-url"
            )


def require_empty(store: Store, where: str) -> None:
    """RestoreRefused unless the store is empty; StoreError if it cannot be reached."""
    if store.mark() is not None or next(iter(store.list("")), None) is not None:
        raise RestoreRefused(
            f"{where} is not empty: name an empty bucket or prefix with --store-url"
        )


def claim(folder: TargetFolder, store: Store, marker: RestoreMarker, where: str) -> None:
    """Give the empty store the new mark; RestoreRefused if it holds something else."""
    is_asked = False
    try:
        if store.mark() == marker.mark:
            return
        require_empty(store, where)
        is_asked = True
        store.set_mark(marker.mark)
    except BaseException:
        # A bucket that cannot be written to, for example. The mark comes before the first object.
        if folder.is_new and marker.store_url and not (is_asked and _may_have(store, marker)):
            folder.give_up()
        raise


def _may_have(store: Store, marker: RestoreMarker) -> bool:
    try:
        return store.mark() == marker.mark
    except StoreError:
        return True

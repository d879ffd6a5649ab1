"""The target of a restore: an empty folder, and an empty bucket if the objects go there."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deltahub.registry.data_folder import RESTORE, SERVE_LOCK, WORKER_LOCK, DataFolderLock
from deltahub.registry.maintenance.backup.snapshot import Snapshot
from deltahub.registry.storage.base import Store
from deltahub.registry.storage.local import translated
from deltahub.registry.stores.current import UNFINISHED
from deltahub.registry.stores.restore_marker import (
    MARKER_IN_WORK,
    RestoreMarker,
    read_marker,
    write_marker,
)

# What an attempt leaves that was cut short before it wrote its marker.
_NO_CONTENT: Final = frozenset({SERVE_LOCK, WORKER_LOCK, MARKER_IN_WORK})


class RestoreRefused(Exception):
    """The target is not empty, or is no target for this snapshot."""

    code = "restore_refused"


@contextmanager
def alone(data_dir: Path) -> Iterator[None]:
    """Make the folder if it is not there, and have it to oneself. A wrong one is not changed."""
    with translated(str(data_dir)):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_empty(data_dir)
        data_dir.chmod(0o700)
    with (
        DataFolderLock(data_dir, SERVE_LOCK, RESTORE),
        DataFolderLock(data_dir, WORKER_LOCK, RESTORE),
    ):
        yield


def _require_empty(data_dir: Path) -> None:
    """RestoreRefused unless the folder is empty, or an earlier restore began in it."""
    if (data_dir / UNFINISHED).exists():
        return
    for found in data_dir.iterdir():
        if found.name not in _NO_CONTENT:
            raise RestoreRefused(
                f"{data_dir} is not empty ({found.name}): a restore overwrites nothing. Name an"
                " empty folder with --data-dir, or move this one away"
            )


def begin(data_dir: Path, snapshot: Snapshot, url: str) -> RestoreMarker:
    """Make the marker, or find that of an earlier attempt."""
    with translated(str(data_dir)):
        _require_empty(data_dir)  # again, because a hub may have come before the lock
    try:
        marker = read_marker(data_dir)
    except ValueError as exc:
        path = data_dir / UNFINISHED
        raise RestoreRefused(f"{path} is damaged ({exc}): delete {data_dir}") from exc
    if marker is None:
        marker = RestoreMarker(snapshot.name, snapshot.hub, url, secrets.token_hex(16))
        write_marker(data_dir, marker)
    elif (marker.snapshot, marker.hub, marker.store_url) != (snapshot.name, snapshot.hub, url):
        where = f" to {marker.store_url}" if marker.store_url else ""
        raise RestoreRefused(
            f"{data_dir} holds half of a restore of snapshot {marker.snapshot}{where}: repeat"
            " that one with --snapshot and --store-url, or delete the folder"
        )
    return marker


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


def claim(store: Store, marker: RestoreMarker, where: str) -> None:
    """Give the empty store the new mark; RestoreRefused if it holds something else."""
    found = store.mark()
    if found == marker.mark:
        return
    if found is not None or next(iter(store.list("")), None) is not None:
        raise RestoreRefused(
            f"{where} is not empty: name an empty bucket or prefix with --store-url"
        )
    store.set_mark(marker.mark)

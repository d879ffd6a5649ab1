"""The place of backups: a folder, or a prefix of a bucket, that holds backups of one hub alone.

docs/backup.md describes what lies there. A place is used through a Store, so that both kinds have
one layout.
"""

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltahub.registry import store_url
from deltahub.registry.data_folder import DataFolderLock
from deltahub.registry.maintenance.deletions import BACKUP, BACKUP_LOCK
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import ObjectNotFound, Store
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.open import open_store

FORMAT: Final = 1
MARK: Final = "deltahub-backup.json"
OBJECTS: Final = "objects/"
DAMAGED: Final = "damaged/"
SNAPSHOTS: Final = "snapshots/"
_S3: Final = "s3://"
# What an empty disk has, and what a backup leaves that was killed before it wrote the mark.
_NO_CONTENT: Final = frozenset({"lost+found", ".tmp", BACKUP_LOCK})
_TEMPORARY: Final = re.compile(r"[0-9a-f]{32}")
# More than any mark or list of findings has: a larger one is no file of a backup.
MAX_JSON_BYTES: Final = 16 << 20


class PlaceRefused(Exception):
    """The place holds something else than backups of this hub, or none."""

    code = "backup_place_refused"


@dataclass(frozen=True)
class Place:
    """An open place. name: as the operator wrote it. hub: the identity of its hub.

    is_locked: no other backup can write here, which a lock ensures in a folder. A bucket has none.
    """

    name: str
    store: Store
    hub: str
    is_locked: bool = False


@contextmanager
def opened_to_write(
    name: str, settings: Settings, hub: str, hub_places: Collection[str]
) -> Iterator[Place]:
    """The place of this hub's backups, made if nothing lies there.

    hub_places: folders and URLs that hold the hub itself. PlaceRefused, and nothing is changed, if
    something else lies there, or a folder's parent is not there; DataFolderBusy if another backup
    writes there.
    """
    for other in hub_places:
        if overlap(name, other, settings):
            raise PlaceRefused(
                f"{name} and {other}, which is the hub's own data folder or store, are one or lie"
                " one in the other, so they would be lost together: name a place on another disk,"
                " or another bucket"
            )
    folder = _folder(name)
    if folder is not None:
        _require_parent(folder, name)
        # Opening it to write makes it a store, and tidies up in it.
        _is_marked(_open(name, settings, is_read_only=True), name, hub)
    store = _open(name, settings, is_read_only=False)
    try:
        alone = DataFolderLock(folder, BACKUP_LOCK, BACKUP) if folder is not None else nullcontext()
        with alone:
            if not _is_marked(store, name, hub):
                text = json.dumps({"format": FORMAT, "hub": hub}).encode()
                store.put(MARK, [text])
            yield Place(name, store, hub, is_locked=folder is not None)
    finally:
        store.close()


def _require_parent(folder: Path, name: str) -> None:
    """A disk that is not mounted lacks the folder, and the backup would go to another disk."""
    if not folder.parent.is_dir():
        raise PlaceRefused(
            f"{name}: there is no folder {folder.parent}. A backup makes the last folder of its"
            " place and none above it, because the others may be on a disk that is not mounted:"
            f" mount the disk, or make the folder (`mkdir -p {folder.parent}`), and run it again"
        )


def overlap(one: str, other: str, settings: Settings) -> bool:
    """Whether two places, each a folder or `s3://BUCKET/PREFIX`, are one or lie one in the other.

    PlaceRefused if the first is a malformed URL.
    """
    places = (_folder(one) or one, _folder(other) or other)
    try:
        return store_url.overlap(*places, settings.s3_endpoint)
    except ValueError as exc:
        raise PlaceRefused(f"{one}: {exc}") from exc


@contextmanager
def opened_to_read(name: str, settings: Settings) -> Iterator[Place]:
    """An existing place, which is not changed; PlaceRefused if it is none."""
    folder = _folder(name)
    if folder is not None and not (folder / MARK).is_file():
        raise PlaceRefused(f"{name} holds no backups: there is no {MARK}")
    store = _open(name, settings, is_read_only=True)
    try:
        hub = _mark(store, name)
        if hub is None:
            raise PlaceRefused(f"{name} holds no backups: there is no {MARK}")
        yield Place(name, store, hub)
    finally:
        store.close()


def read_small(store: Store, key: str) -> bytes:
    """A small object; StoreError. ValueError if it is larger than any that a backup writes."""
    size = store.size(key)
    if size > MAX_JSON_BYTES:
        raise ValueError(f"{key} has {size} bytes")
    data = bytearray(size)
    store.get_into(key, 0, memoryview(data))
    return bytes(data)


def _open(name: str, settings: Settings, *, is_read_only: bool) -> Store:
    folder = _folder(name)
    try:
        return open_store(
            "" if folder is not None else name,
            folder if folder is not None else Path(),
            settings,
            Disk(),
            is_read_only=is_read_only,
        )
    except ValueError as exc:
        raise PlaceRefused(f"{name}: {exc}") from exc


def _folder(name: str) -> Path | None:
    return None if name.startswith(_S3) else Path(name).resolve()


def _mark(store: Store, name: str) -> str | None:
    """The hub whose backups lie here; None if nothing says so. PlaceRefused if it is unreadable."""
    try:
        data = read_small(store, MARK)
    except ObjectNotFound:
        return None
    try:
        mark = json.loads(data)
        if mark["format"] != FORMAT:
            raise PlaceRefused(
                f"{name} has format {mark['format']}, and this release reads format {FORMAT}: use"
                " the release that wrote it, or a newer one"
            )
        return str(mark["hub"])
    except (ValueError, KeyError, TypeError) as exc:
        raise PlaceRefused(f"{MARK} in {name} is damaged: {exc}") from exc


def _is_marked(store: Store, name: str, hub: str) -> bool:
    """Whether this is the place of the hub already; PlaceRefused unless it is, or is empty."""
    folder = _folder(name)
    # A folder that is no store yet counts as a disk that is away.
    known = _mark(store, name) if folder is None or (folder / MARK).exists() else None
    if known is None:
        _require_empty(store, name)
    elif known != hub:
        raise PlaceRefused(
            f"{name} holds the backups of another hub ({known}; this one is {hub}, and a restored"
            " hub is another one than the lost one): name another place"
        )
    return known is not None


def _require_empty(store: Store, name: str) -> None:
    if store.mark() is not None:
        raise PlaceRefused(f"{name} holds the objects of a hub: name an empty place for backups")
    folder = _folder(name)
    found: str | None
    if folder is not None:
        found = _content(folder)
    else:
        found = next((item.key for item in store.list("")), None)
    if found is not None:
        raise PlaceRefused(
            f"{name} is not empty ({found}), and holds no backups: name an empty place"
        )


def _content(folder: Path) -> str | None:
    """The name of something that no backup has put into a folder, a hidden file too."""
    with translated(str(folder)):
        try:
            for path in folder.iterdir():
                if path.name not in _NO_CONTENT:
                    return path.name
            temporary = folder / ".tmp"
            for path in temporary.iterdir() if temporary.is_dir() else ():
                if not _TEMPORARY.fullmatch(path.name):
                    return f".tmp/{path.name}"
        except FileNotFoundError:
            pass
    return None

"""The place of backups: a folder, or a prefix of a bucket, that holds backups of one hub alone.

docs/backup.md describes what lies there. A place is used through a Store, so that both kinds have
one layout.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltahub.registry.data_folder import DataFolderLock
from deltahub.registry.maintenance.deletions import BACKUP, BACKUP_LOCK
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import ObjectNotFound, Store
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.open import open_store
from deltahub.registry.store_url import overlap

FORMAT: Final = 1
MARK: Final = "deltahub-backup.json"
OBJECTS: Final = "objects/"
DAMAGED: Final = "damaged/"
SNAPSHOTS: Final = "snapshots/"
_S3: Final = "s3://"
# More than any mark or list of findings has: a larger one is no file of a backup.
MAX_JSON_BYTES: Final = 16 << 20


class PlaceRefused(Exception):
    """The place holds something else than backups of this hub, or none."""

    code = "backup_place_refused"


@dataclass(frozen=True)
class Place:
    """An open place. name: as the operator wrote it. hub: the identity of its hub."""

    name: str
    store: Store
    hub: str


@contextmanager
def opened_to_write(
    name: str, settings: Settings, data_dir: Path, hub: str, stores: Collection[str | Path]
) -> Iterator[Place]:
    """The place of this hub's backups, made if nothing lies there.

    stores: where the hub's objects lie, as overlap() takes them.
    PlaceRefused if something else lies there; DataFolderBusy if another backup writes there.
    """
    folder = _folder(name)
    if folder is not None and folder.is_relative_to(data_dir):
        raise PlaceRefused(
            f"{folder} lies in the hub's own data folder and would be lost with it: name a place"
            " on another disk, or a bucket"
        )
    inside = overlapped(name, [data_dir, *stores], settings)
    if inside is not None:
        raise PlaceRefused(
            f"{name} and {inside}, where the hub lies, are not apart: name a place that is not"
            " inside the other, such as another prefix"
        )
    store = _open(name, settings, is_read_only=False)
    try:
        known = _mark(store, name)
        if known is None:
            _require_empty(store, name)
            text = json.dumps({"format": FORMAT, "hub": hub}).encode()
            store.put(MARK, [text])
            known = hub
        if known != hub:
            raise PlaceRefused(
                f"{name} holds the backups of another hub ({known}; this one is {hub}): name"
                " another place"
            )
        if folder is None:
            yield Place(name, store, hub)
        else:
            with DataFolderLock(folder, BACKUP_LOCK, BACKUP):
                yield Place(name, store, hub)
    finally:
        store.close()


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


def overlapped(name: str, others: Iterable[str | Path], settings: Settings) -> str | Path | None:
    """The first of these URLs and folders that lies in the place, or the place in it.

    PlaceRefused if the place's URL is wrong.
    """
    try:
        where = _folder(name) or name
        return next((o for o in others if overlap(where, o, settings.s3_endpoint)), None)
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


def _require_empty(store: Store, name: str) -> None:
    if store.mark() is not None:
        raise PlaceRefused(f"{name} holds the objects of a hub: name an empty place for backups")
    found = next(iter(store.list("")), None)
    if found is not None:
        raise PlaceRefused(
            f"{name} is not empty ({found.key}), and holds no backups: name an empty place"
        )

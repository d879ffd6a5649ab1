"""Makes a hub of a snapshot in an empty folder, and an empty bucket if its objects go there.

The database comes last: until it is there, and the file `restore.unfinished` is not, no hub starts
in the folder. A restore that was cut short is repeated, and reads what is there already. It holds
the locks of a hub, so that neither a hub nor another restore works in the folder at the same time.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from deltahub.registry.failpoints import reached
from deltahub.registry.maintenance.backup.copy import SourceFault, copy_object, digest_in
from deltahub.registry.maintenance.backup.database import is_sqlite
from deltahub.registry.maintenance.backup.place import Place, overlap
from deltahub.registry.maintenance.backup.proofs import Blake3Proof
from deltahub.registry.maintenance.backup.snapshot import Entry, Snapshot, SnapshotDamaged, entries
from deltahub.registry.maintenance.backup.verify import place_key
from deltahub.registry.maintenance.restore.database import (
    lost_places,
    place_database,
    require_empty_database,
)
from deltahub.registry.maintenance.restore.target import (
    RestoreRefused,
    claim,
    own_folder,
    require_apart,
    require_empty,
)
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import Store
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.open import open_store
from deltahub.registry.stores.current import OBJECTS, UNFINISHED

_PARALLEL: Final = 4
_BATCH: Final = 64


@dataclass
class Restored:
    """What a restore did. missing: objects that the snapshot lacks or has only damaged."""

    snapshot: Snapshot
    n_objects: int = 0
    n_bytes: int = 0
    found_bytes: int = 0
    missing: int = 0


def restore(
    place: Place,
    snapshot: Snapshot,
    settings: Settings,
    progress: Callable[[str, int], None] = lambda stage, n_bytes: None,
) -> Restored:
    """Make a hub in settings.data_dir, whose objects go to settings.store_url.

    RestoreRefused if one of them is not empty; DataFolderBusy if another restore, or a hub, works
    in the folder; SnapshotDamaged, whose text names the object; ToolMissing, StoreError. After an
    error, run it again: to the same target if objects were copied, else to any.
    """
    data_dir = settings.data_dir.resolve()
    url = settings.store_url or ""
    for target in (str(data_dir), url) if url else (str(data_dir),):
        if overlap(place.name, target, settings):
            raise RestoreRefused(
                f"{target} and the backups in {place.name} are one or lie one in the other: name"
                " another place with --data-dir or --store-url"
            )
    _require_kind(snapshot, settings)
    where = url or str(data_dir / OBJECTS)
    with own_folder(data_dir) as folder:
        marker = folder.begun(snapshot, url)
        if marker is None:
            _check_target(place, snapshot, settings, data_dir)
            marker = folder.begin(snapshot, url)
        with closing(open_store(url, data_dir / OBJECTS, settings, Disk())) as store:
            claim(folder, store, marker, where)
            restored = _Objects(place, store, snapshot, progress).copy()
        progress("the database", restored.n_bytes)
        reached("restore.before_database")
        place_database(place, snapshot, settings, data_dir, marker)
        reached("restore.after_database")
        with translated(str(data_dir)):
            (data_dir / UNFINISHED).unlink()
            Disk().fsync_dir(data_dir)
    return restored


def _require_kind(snapshot: Snapshot, settings: Settings) -> None:
    if is_sqlite(snapshot.database.name) != (settings.database_url is None):
        kind = "SQLite" if settings.database_url is not None else "PostgreSQL"
        way_out = (
            "leave DELTAHUB_DATABASE_URL out"
            if settings.database_url is not None
            else "name an empty one with DELTAHUB_DATABASE_URL"
        )
        raise RestoreRefused(f"snapshot {snapshot.name} is of a database of {kind}: {way_out}")


def _check_target(place: Place, snapshot: Snapshot, settings: Settings, data_dir: Path) -> None:
    """Refuse a wrong bucket or database now, and not after hours of copying."""
    if url := settings.store_url:
        with closing(open_store(url, Path(), settings, Disk(), is_read_only=True)) as store:
            require_empty(store, url)
        require_apart(url, lost_places(place, snapshot, data_dir), settings.s3_endpoint)
    if settings.database_url is not None:
        require_empty_database(settings.database_url)


class _Objects:
    """The copying of all objects of a snapshot into the new store."""

    def __init__(
        self,
        place: Place,
        store: Store,
        snapshot: Snapshot,
        progress: Callable[[str, int], None],
    ) -> None:
        self._place = place
        self._store = store
        self._progress = progress
        self._restored = Restored(snapshot)

    def copy(self) -> Restored:
        restored = self._restored
        present = (e for e in entries(self._place, restored.snapshot) if self._is_there(e))
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="restore") as pool:
            while batch := list(islice(present, _BATCH)):
                for entry, was_there in zip(batch, pool.map(self._put, batch), strict=True):
                    restored.n_objects += 1
                    restored.n_bytes += entry.size
                    restored.found_bytes += entry.size if was_there else 0
                    self._progress("objects", restored.n_bytes)
        return restored

    def _is_there(self, entry: Entry) -> bool:
        self._restored.missing += entry.state != "whole"
        return entry.state != "missing"

    def _put(self, entry: Entry) -> bool:
        """Whether the store had the object already, from an earlier attempt."""
        proof_of = partial(Blake3Proof, entry.blake3)
        if digest_in(self._store, entry.key, entry.size, proof_of) is not None:
            return True
        source_key = place_key(entry)
        try:
            copy_object(self._place.store, source_key, self._store, entry.key, entry.size, proof_of)
        except SourceFault as exc:
            raise SnapshotDamaged(
                f"{source_key} in the backup: {exc}; `deltahub backup verify` names all damage,"
                " and --snapshot names another backup"
            ) from exc
        reached("restore.after_object")
        return False

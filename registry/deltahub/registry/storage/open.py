"""Opens the store of a URL."""

from pathlib import Path

from deltahub.registry.measures import Measures
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import Store
from deltahub.registry.storage.cache.object_cache import ObjectCache
from deltahub.registry.storage.cache.store import CachedStore
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import FileStore
from deltahub.registry.storage.measured.store import MeasuredStore
from deltahub.registry.storage.sequential import SequentialReads
from deltahub.registry.store_url import S3Location


def open_store(
    url: str,
    folder: Path,
    settings: Settings,
    disk: Disk,
    *,
    cache: ObjectCache | None = None,
    measures: Measures | None = None,
    is_read_only: bool = False,
) -> Store:
    """The store of a URL; of "" the local one in `folder`. StoreError if it cannot be made.

    cache: of packs that are read from a bucket, for a hub's own store.
    measures: where the operations of that store are counted.
    is_read_only: create and delete nothing. The caller puts no object.
    """
    if not url:
        return _measured(FileStore(folder, disk, is_read_only=is_read_only), measures)
    # Loading boto3 takes half a second.
    from deltahub.registry.storage.s3.store import S3Store

    store = _measured(S3Store(S3Location.parse(url), settings), measures)
    return store if cache is None else SequentialReads(CachedStore(store, cache))


def _measured(store: Store, measures: Measures | None) -> Store:
    return store if measures is None else MeasuredStore(store, measures)

"""Which spool a hub has: it may move to a bucket, or from one, while it serves."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

from deltahub.registry.spools.base import Claim, Spool, UnfinishedUpload
from deltahub.registry.spools.bucket.spool import BucketSpool
from deltahub.registry.spools.local import LocalSpool
from deltahub.registry.storage.base import Store


class SpoolByPlace:
    """The bucket's spool while the hub's objects lie in a bucket, else that of the machine.

    An upload that is unfinished when the hub moves begins again: its client is told that the hub
    has no byte of it.
    """

    def __init__(self, store: Store, local: LocalSpool, bucket: BucketSpool) -> None:
        self._store = store
        self._local = local
        self._bucket = bucket

    @property
    def _current(self) -> Spool:
        return self._local if self._store.parts() is None else self._bucket

    def size(self, upload_id: str) -> int | None:
        return self._current.size(upload_id)

    def open(self, upload_id: str, total: int) -> AbstractContextManager[UnfinishedUpload]:
        return self._current.open(upload_id, total)

    def locked(self, upload_id: str) -> AbstractContextManager[Claim | None]:
        return self._current.locked(upload_id)

    def revoke(self, upload_id: str) -> None:
        self._current.revoke(upload_id)

    def local_bytes(self, sizes: Iterable[int]) -> int:
        return self._current.local_bytes(sizes)

    def close(self) -> None:
        self._local.close()
        self._bucket.close()

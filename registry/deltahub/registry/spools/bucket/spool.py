"""The unfinished uploads of a hub on several machines."""

import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deltahub.registry.db.session import Database, WriteSession
from deltahub.registry.spools.base import Claim
from deltahub.registry.spools.bucket import rows, sizes
from deltahub.registry.spools.bucket.leases import Leases
from deltahub.registry.spools.bucket.sender import MOST_RUNNING, abort
from deltahub.registry.spools.bucket.upload import BucketUpload
from deltahub.registry.spools.kept import KeptHashes
from deltahub.registry.storage.base import PartsLost, PartStore, SpoolBusy, Store
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.keys import landing_key, spool_key

# Parts that this process sends at once.
_PARALLEL: Final = 4


class BucketSpool:
    """Unfinished uploads as parts in the bucket and rows of the database; any process goes on.

    No byte that was acknowledged lies on this machine alone. A part fills in a scratch file, is
    sent, and is recorded by a transaction. What does not fill a part becomes a tail, an object of
    its own, which is read back when the upload goes on.
    """

    def __init__(self, db: Database, store: Store, disk: Disk, scratch: Path) -> None:
        self.db = db
        self.store = store
        self.disk = disk
        self.scratch = scratch
        # By the tokens of the connections that recorded these bytes.
        self.kept = KeptHashes()
        self.pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="spool")
        self._leases = Leases(db)

    def parts(self) -> PartStore:
        parts = self.store.parts()
        if parts is None:
            raise PartsLost("the hub's objects have moved to a folder")
        return parts

    def size(self, upload_id: str) -> int | None:
        with self.db.read() as session:
            return rows.received(session, upload_id) or None

    @contextmanager
    def open(self, upload_id: str, total: int) -> Iterator[BucketUpload]:
        token = secrets.token_hex(16)
        with self.db.write_beside() as session:
            claimed = rows.claim(session, upload_id, token, sizes.part_bytes_of(total))
        with self._held(BucketUpload(self, upload_id, token, total, claimed), token) as upload:
            yield upload

    @contextmanager
    def locked(self, upload_id: str) -> Iterator[Claim | None]:
        with self.db.read() as session:
            is_free = rows.is_free(session, upload_id)
            has_upload = is_free and rows.has_upload(session, upload_id)
        if not has_upload:
            yield _NothingCame(upload_id) if is_free else None
            return
        token = secrets.token_hex(16)
        try:
            with self.db.write_beside() as session:
                claimed = rows.claim_known(session, upload_id, token)
        except SpoolBusy:
            yield None
            return
        if claimed is None:
            yield _NothingCame(upload_id)
            return
        total = claimed.progress.received
        with self._held(BucketUpload(self, upload_id, token, total, claimed), token) as upload:
            yield upload

    def revoke(self, upload_id: str) -> None:
        with self.db.write() as session:
            progress = rows.forget(session, upload_id)
        if progress is None:
            return
        if progress.multipart_id is not None:
            abort(self.parts(), landing_key(upload_id), progress.multipart_id)
        if progress.tail is not None:
            self.store.delete(spool_key(progress.tail.id))

    def local_bytes(self, sizes_bytes: Iterable[int]) -> int:
        """Of one upload: its parts that are sent, and the one that fills."""
        return max(
            (min(size, sizes.part_bytes_of(size) * (MOST_RUNNING + 2)) for size in sizes_bytes),
            default=0,
        )

    def close(self) -> None:
        self._leases.close()
        self.pool.shutdown()
        self.kept.clear()

    @contextmanager
    def _held(self, upload: BucketUpload, token: str) -> Iterator[BucketUpload]:
        self._leases.hold(token)
        try:
            yield upload
        finally:
            try:
                upload.close()
            finally:
                self._leases.let_go(token)


class _NothingCame:
    """The claim of an upload without a byte. It holds as long as no connection sends one."""

    def __init__(self, upload_id: str) -> None:
        self._id = upload_id

    def settle(self, session: WriteSession) -> bool:
        return not rows.has_upload(session, self._id)

    def discard(self) -> None:
        pass

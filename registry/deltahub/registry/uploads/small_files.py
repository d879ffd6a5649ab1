"""Small files that come together, as within one commit: durable and proved a batch at a time.

Each becomes an upload like any other (landing.py), but they share what costs: one transaction
announces a batch, its bytes become durable together, one transaction makes all of them known.
A crash leaves uploads that are whole, and such as have only been announced.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import select

from deltahub.registry import failpoints
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.db.models import Landing, utc_now
from deltahub.registry.errors import LimitExceeded
from deltahub.registry.registry import Registry
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.storage.refusals import translated_store_errors
from deltahub.registry.storage.spool import Hashes
from deltahub.registry.uploads.landing import promise

# What waits in memory; the last file may go beyond.
BATCH_BYTES: Final = 8 << 20
BATCH_FILES: Final = 256


@dataclass(frozen=True, slots=True)
class _SmallFile:
    data: bytes
    git_blob_id: str | None


class SmallFiles:
    """The files of one caller on their way in. Not shared between threads.

    What add() has named is an upload of the caller's once flush() has returned.
    """

    def __init__(self, reg: Registry, caller: Caller | None) -> None:
        self._reg = reg
        self._caller = require_writer(caller)
        self._batch: dict[str, _SmallFile] = {}
        self._batch_bytes = 0

    def add(self, data: bytes) -> str:
        """Takes a file; its SHA-256. LimitExceeded, and what flush() raises."""
        limit = self._reg.settings.max_file_bytes
        if len(data) > limit:
            raise LimitExceeded(f"the file has {len(data)} bytes; this hub takes at most {limit}")
        hashes = Hashes(len(data))
        hashes.update(data)
        sha256 = hashes.sha256
        if sha256 not in self._batch:
            self._batch[sha256] = _SmallFile(data, hashes.git_blob_id)
            self._batch_bytes += len(data)
        if self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_FILES:
            self.flush()
        return sha256

    def flush(self) -> None:
        """Makes all that was added durable and known. StorageFull, Unavailable."""
        batch, self._batch, self._batch_bytes = self._batch, {}, 0
        while batch:
            ids = self._announce(batch)
            objects = {landing_key(row_id): batch[sha256].data for sha256, row_id in ids.items()}
            failpoints.reached("small_files.before_store")
            with translated_store_errors():
                self._reg.store.put_together(objects)
            failpoints.reached("small_files.after_store")
            batch = self._complete(batch, ids)
            failpoints.reached("small_files.after_rows")

    def _announce(self, batch: Mapping[str, _SmallFile]) -> dict[str, str]:
        """SHA-256 -> id of what is not here yet. What is, somebody will now count on."""
        ids: dict[str, str] = {}
        rows = []
        ttl_s = self._reg.settings.upload_ttl_s
        with self._reg.db.write() as session:
            query = select(Landing).where(
                Landing.user_id == self._caller.user_id, Landing.sha256.in_(batch)
            )
            for row in session.scalars(query):
                # Another connection may be sending these bytes: the first completes them, and
                # they stay until the other has seen that they are here.
                promise(row, ttl_s)
                ids[row.sha256] = "" if row.state == "complete" else row.id
            for sha256, small in batch.items():
                if sha256 not in ids:
                    ids[sha256] = secrets.token_hex(16)
                    rows.append(self._row(ids[sha256], sha256, small))
            session.add_all(rows)
        return {sha256: row_id for sha256, row_id in ids.items() if row_id}

    def _row(self, row_id: str, sha256: str, small: _SmallFile) -> Landing:
        return Landing(
            id=row_id,
            user_id=self._caller.user_id,
            sha256=sha256,
            size=len(small.data),
            state="receiving",
            expires_at=utc_now() + timedelta(seconds=self._reg.settings.upload_ttl_s),
        )

    def _complete(
        self, batch: Mapping[str, _SmallFile], ids: Mapping[str, str]
    ) -> dict[str, _SmallFile]:
        """Makes stored files known; what has to be sent anew, as its row is gone."""
        ttl_s = self._reg.settings.upload_ttl_s
        gone = dict(ids)
        with self._reg.db.write() as session:
            for row in session.scalars(select(Landing).where(Landing.id.in_(ids.values()))):
                small = batch.get(row.sha256)
                if small is None:
                    continue  # it expired, and is being collected
                del gone[row.sha256]
                if row.state == "complete":
                    # Another connection was first, and may let go of it once it has used it.
                    promise(row, ttl_s)
                    continue
                row.state, row.size = "complete", len(small.data)
                row.git_blob_id = small.git_blob_id
                row.expires_at = utc_now() + timedelta(seconds=ttl_s)
            failpoints.reached("small_files.before_rows")
        for row_id in gone.values():
            # Nothing may stay that no row knows.
            self._reg.store.delete(landing_key(row_id))
        return {sha256: batch[sha256] for sha256 in gone}

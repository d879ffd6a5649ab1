"""Stores small files in batches, for example those of one commit.

Each becomes an upload like any other (landing.py), but a batch shares the costly steps: one
transaction announces its files, their bytes are made durable together, and one transaction marks
all of them as complete. A crash leaves uploads that are either complete or only announced.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import select

from deltahub.registry import cancellation, failpoints
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.db.models import Landing, utc_now
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.errors import LimitExceeded
from deltahub.registry.registry import Registry
from deltahub.registry.storage.checksums import Hashes
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.storage.refusals import translated_store_errors
from deltahub.registry.uploads import limits
from deltahub.registry.uploads.landing import complete, promise

# Limits of a batch in memory. The last file may exceed BATCH_BYTES.
BATCH_BYTES: Final = 8 << 20
BATCH_FILES: Final = 256


@dataclass(frozen=True, slots=True)
class _SmallFile:
    data: bytes
    hashes: Hashes


class SmallFiles:
    """Receives small files of one caller. Not thread-safe.

    After flush(), every file that was added is a complete upload of the caller.
    """

    def __init__(self, reg: Registry, caller: Caller | None) -> None:
        self._reg = reg
        self._caller = require_writer(caller)
        self._batch: dict[str, _SmallFile] = {}
        self._batch_bytes = 0

    def add(self, data: bytes) -> str:
        """Add a file; returns its SHA-256. LimitExceeded, and the errors of flush()."""
        limit = self._reg.settings.max_file_bytes
        if len(data) > limit:
            raise LimitExceeded(f"the file has {len(data)} bytes; this hub takes at most {limit}")
        hashes = Hashes(len(data))
        hashes.update(data)
        sha256 = hashes.sha256
        if sha256 not in self._batch:
            self._batch[sha256] = _SmallFile(data, hashes)
            self._batch_bytes += len(data)
        if self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_FILES:
            self.flush()
        return sha256

    def flush(self) -> None:
        """Make all added files durable and complete. LimitExceeded, StorageFull, Unavailable."""
        batch, self._batch, self._batch_bytes = self._batch, {}, 0
        while batch:
            cancellation.check()
            ids = self._announce(batch)
            objects = {landing_key(row_id): batch[sha256].data for sha256, row_id in ids.items()}
            failpoints.reached("small_files.before_store")
            with translated_store_errors():
                self._reg.store.put_together(objects)
            failpoints.reached("small_files.after_store")
            batch = self._complete(batch, ids)
            failpoints.reached("small_files.after_rows")

    @retried
    def _announce(self, batch: Mapping[str, _SmallFile]) -> dict[str, str]:
        """SHA-256 -> upload id of the files that are not complete yet. All uploads are promised."""
        ids: dict[str, str] = {}
        rows, begun = [], []
        ttl_s = self._reg.settings.upload_ttl_s
        sizes = {sha256: len(small.data) for sha256, small in batch.items()}
        limits.announce(self._reg, self._caller, sizes)
        with self._reg.db.write_beside() as session:
            query = select(Landing).where(
                Landing.user_id == self._caller.user_id, Landing.sha256.in_(batch)
            )
            for row in session.scalars(query.order_by(Landing.id).with_for_update()):
                # Another connection may be sending the same bytes. The first of both completes the
                # upload, and the promise keeps it until the other has seen that it is complete.
                promise(row, ttl_s)
                ids[row.sha256] = "" if row.state == "complete" else row.id
                if ids[row.sha256]:
                    begun.append(row.id)
            for sha256, small in batch.items():
                if sha256 not in ids:
                    ids[sha256] = secrets.token_hex(16)
                    rows.append(self._row(ids[sha256], sha256, small))
            session.add_all(rows)
        with translated_store_errors():
            for row_id in begun:
                self._reg.spool.revoke(row_id)
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
        """Mark stored files as complete; returns files whose rows are gone, to be stored again."""
        ttl_s = self._reg.settings.upload_ttl_s
        gone = dict(ids)
        with self._reg.db.write_beside() as session:
            query = select(Landing).where(Landing.id.in_(ids.values())).order_by(Landing.id)
            for row in session.scalars(query.with_for_update()):
                small = batch.get(row.sha256)
                if small is None:
                    continue  # the upload expired, and gc is deleting it
                del gone[row.sha256]
                if row.state == "complete":
                    # Another connection was first. Without a promise its job may delete the upload.
                    promise(row, ttl_s)
                    continue
                complete(session, row, small.hashes, ttl_s)
            failpoints.reached("small_files.before_rows")
        for row_id in gone.values():
            # An object without a row must not stay.
            self._reg.store.delete(landing_key(row_id))
        return {sha256: batch[sha256] for sha256 in gone}

"""One unfinished upload in a bucket, while a connection has claimed it."""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry import cancellation
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import RegistryError
from deltahub.registry.failpoints import reached
from deltahub.registry.spools.bucket import rows, sizes
from deltahub.registry.spools.bucket.part_file import PartFile
from deltahub.registry.spools.bucket.rows import Claimed, Progress, Tail
from deltahub.registry.spools.bucket.sender import PartSender
from deltahub.registry.storage.base import (
    Buffer,
    ObjectNotFound,
    PartsLost,
    ShortObject,
    StoreError,
)
from deltahub.registry.storage.checksums import Hashes
from deltahub.registry.storage.keys import landing_key, spool_key
from deltahub.registry.stores.readback import hashes_in

if TYPE_CHECKING:
    from deltahub.registry.spools.bucket.spool import BucketSpool

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20


class BucketUpload:
    """An upload, claimed by a token of its own.

    The bytes are those of the parts that were sent, then those of the file that fills. Its bytes
    become a part when it is full, and a tail when the connection ends before.

    _recorded: what the database says. _kept: what it said after the last sync(), to which
    roll_back() returns; `_hashes_kept` are the hashes then. Hashes are None if this process has not
    seen all bytes.
    """

    def __init__(
        self, spool: "BucketSpool", upload_id: str, token: str, total: int, claimed: Claimed
    ) -> None:
        self._spool = spool
        self._id = upload_id
        self._token = token
        self._total = total
        self._recorded = claimed.progress
        if not self._recorded.received and self._recorded.multipart_id is None:
            self._recorded = Progress(sizes.part_bytes_of(total))
        self._kept = self._recorded
        self._key = landing_key(upload_id)
        if claimed.is_damaged:
            # Its object may still be put right, so it is not replaced by bytes that may be wrong.
            self._key = spool_key(upload_id)
        self._sender = PartSender(spool.parts(), spool.pool, self._key)
        self._sender.go_on(self._kept.multipart_id, self._kept.parts)
        self.size = self._kept.received
        self._hashes = self._known_hashes(claimed.previous)
        self._hashes_kept = _copy(self._hashes)
        self._file: PartFile | None = None
        # What the file begins with, as long as it is not read back.
        self._tail = self._kept.tail
        self._old_tails: list[str] = []
        self._is_whole_but_unsaved = False
        self._is_settled = False

    def append(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        while view:
            file = self._filling()
            piece = view[: self._recorded.part_bytes - file.size]
            file.append(piece)
            self.size += piece.nbytes
            if self._hashes is not None:
                self._hashes.update(piece)
            view = view[piece.nbytes :]
            if file.size == self._recorded.part_bytes < self._total:
                self._send()

    def sync(self) -> None:
        if self.size == self._kept.received:
            return
        # What came is kept although its client may have gone.
        with cancellation.unstoppable():
            if self.size == self._total:
                if self._sender.upload_id is None:
                    self._is_whole_but_unsaved = True  # store() writes it by one request
                    return
                if self._filling().size:
                    self._send()
            self._sender.wait()
            self._record(self._saved_tail())
        self._keep()

    def roll_back(self) -> None:
        kept = self._kept
        self._sender.go_on(self._sender.upload_id, kept.parts)
        self._old_tails = []
        self._record(kept.tail)
        self._kept = self._recorded
        self._close_file()
        self._tail = kept.tail
        self.size, self._hashes = kept.received, _copy(self._hashes_kept)
        self._is_whole_but_unsaved = False

    def restart(self) -> None:
        if self.size == 0 and self._recorded.multipart_id is None:
            return
        # The parts end before others are sent: a process that stood still meanwhile could
        # otherwise make an object of them.
        self._sender.abort()
        self._close_file()
        self._tail = None
        self._replace(Progress(sizes.part_bytes_of(self._total)))
        self.size, self._hashes = 0, Hashes(self._total)
        self._is_whole_but_unsaved = False
        self._keep()

    def store(self, sha256: str) -> Hashes:
        if self._sender.upload_id is None:
            return self._store_file(sha256)
        hashes = self._hashes
        if hashes is not None and hashes.sha256 != sha256:
            return hashes
        reached("bucket_spool.finish.before_object")
        is_proved = self._sender.finish()
        reached("bucket_spool.finish.after_object")
        if hashes is None or not is_proved or self._key != landing_key(self._id):
            hashes = hashes_in(self._spool.store, self._key, self._total)
            if hashes is None:
                raise PartsLost("the object that was made of the upload is gone")
        if hashes.sha256 == sha256 and self._key != landing_key(self._id):
            self._spool.store.put(landing_key(self._id), self._pieces(self._key, self._total))
        return hashes

    def settle(self, session: WriteSession) -> bool:
        self._is_whole_but_unsaved = False
        self._is_settled = rows.settle(session, self._id, self._token)
        return self._is_settled

    def discard(self) -> None:
        if not self._is_settled:
            with self._spool.db.write_beside() as session:
                is_ours = self.settle(session)
            if not is_ours:
                return
        keys = [spool_key(tail_id) for tail_id in self._old_tails]
        if self._recorded.tail is not None:
            keys.append(spool_key(self._recorded.tail.id))
        if self._key != landing_key(self._id):
            keys.append(self._key)
        with _left_to_gc(self._id):
            self._sender.abort()
            self._spool.store.delete_together(keys)

    def close(self) -> None:
        """Save what can be saved, and let others claim the upload."""
        try:
            self._sender.stop()
            if self._is_whole_but_unsaved and not self._is_settled:
                with cancellation.unstoppable():
                    self._record(self._saved_tail())
                self._keep()
            if self._sender.upload_id != self._recorded.multipart_id:
                with _left_to_gc(self._id):  # no row names these parts
                    self._sender.abort()
            if not self._is_settled:
                rows.release(self._spool.db, self._id, self._token)
                if self._hashes_kept is not None and self._kept == self._recorded:
                    self._spool.kept.keep(self._token, self._hashes_kept)
        except (StoreError, RegistryError, SQLAlchemyError) as exc:
            log.warning("upload=%s its lease ends by itself: %s", self._id, exc)
        finally:
            self._close_file()

    def _known_hashes(self, previous: str) -> Hashes | None:
        """Of the bytes that are here, if this process has seen them all."""
        if self.size == 0:
            return Hashes(self._total)
        hashes = self._spool.kept.take(previous)
        if hashes is None or (hashes.n_bytes, hashes.total) != (self.size, self._total):
            return None
        return hashes

    def _filling(self) -> PartFile:
        """The file of the bytes after the last part that was sent."""
        if self._file is None:
            self._file = PartFile(self._spool.disk, self._spool.scratch)
        if self._tail is not None:
            self._read_back(self._tail, self._file)
            self._tail = None
        return self._file

    def _read_back(self, tail: Tail, file: PartFile) -> None:
        try:
            for piece in self._pieces(spool_key(tail.id), tail.size):
                file.append(piece)
        except (ObjectNotFound, ShortObject) as exc:
            raise PartsLost(f"the end of what came is gone: {exc}") from exc
        if file.crc32 != tail.crc32:
            raise PartsLost("the end of what came is damaged")

    def _send(self) -> None:
        file, self._file = self._filling(), None
        self._sender.send(file)
        if len(self._sender.sent) >= len(self._recorded.parts) + sizes.RECORDED_TOGETHER:
            self._record(None)

    def _saved_tail(self) -> Tail | None:
        """The bytes of the file in an object of their own."""
        if self._tail is not None:
            return self._tail
        if self._file is None or not self._file.size:
            return None
        tail = Tail(secrets.token_hex(16), self._file.size, self._file.crc32)
        self._spool.store.put(spool_key(tail.id), self._file.pieces())
        reached("bucket_spool.tail.after_put")
        return tail

    def _record(self, tail: Tail | None) -> None:
        """Record the parts that were sent, and the tail."""
        part_bytes = self._recorded.part_bytes
        sender = self._sender
        self._replace(Progress(part_bytes, sender.upload_id, tuple(sender.sent), tail))

    def _replace(self, new: Progress) -> None:
        old = self._recorded
        if new == old:
            return
        rows.record(self._spool.db, self._id, self._token, old, new)
        if old.tail is not None and old.tail != new.tail:
            self._old_tails.append(old.tail.id)
        self._recorded = new

    def _keep(self) -> None:
        """Return to this from now on; what was before is not needed any more."""
        self._kept, self._hashes_kept = self._recorded, _copy(self._hashes)
        gone, self._old_tails = self._old_tails, []
        if gone:
            with _left_to_gc(self._id):
                self._spool.store.delete_together([spool_key(tail_id) for tail_id in gone])

    def _store_file(self, sha256: str) -> Hashes:
        """Write an upload that is no larger than a part, once its SHA-256 is compared."""
        file = self._filling()
        hashes = self._hashes if self._hashes is not None else file.hashes()
        if hashes.sha256 == sha256:
            # If the bucket is away, it does not take a tail, either.
            self._is_whole_but_unsaved = False
            self._spool.store.put(landing_key(self._id), file.pieces())
        return hashes

    def _pieces(self, key: str, size: int) -> Iterator[memoryview]:
        for start in range(0, size, _READ_BYTES):
            piece = memoryview(bytearray(min(_READ_BYTES, size - start)))
            self._spool.store.get_into(key, start, piece)
            yield piece

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


@contextmanager
def _left_to_gc(upload_id: str) -> Iterator[None]:
    """A context in which nothing has to succeed, because no row names what is deleted."""
    try:
        yield
    except StoreError as exc:
        log.warning("upload=%s gc deletes what is left of its parts: %s", upload_id, exc)


def _copy(hashes: Hashes | None) -> Hashes | None:
    return None if hashes is None else hashes.copy()

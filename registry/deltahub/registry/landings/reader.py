"""Reads the bytes of complete uploads, each block compared with its checksum."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from sqlalchemy import func, select

from deltahub.registry.db.models import Landing
from deltahub.registry.landings.damage import UploadDamaged, damage_of, mark_damaged
from deltahub.registry.packs.buffers import allocate_buffer
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound, ShortObject
from deltahub.registry.storage.checksums import BLOCK_BYTES, CHECKSUM_BYTES, Hashes, block_checks
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.storage.refusals import translated_store_errors
from deltahub.registry.stores.readback import hashes_in

# Checksums that are loaded at once: those of 1 GiB.
_WINDOW_BLOCKS: Final = 1024
# The most blocks of one request to the store: an answer of a bucket takes some 20 ms to begin. A
# reader begins with one block, so that its first byte comes soon, and doubles.
_RUN_BLOCKS: Final = 4


class LandingReader:
    """Reads one complete upload. Safe to share between threads. Memory: _RUN_BLOCKS blocks.

    Every method raises UploadDamaged if a block is not the one that arrived, which also marks the
    upload as damaged; ObjectNotFound if the upload was ingested or deleted meanwhile.
    """

    def __init__(self, reg: Registry, landing_id: str) -> None:
        self._reg = reg
        self._id = landing_id
        self._size = 0
        # (number of the window, its checksums)
        self._window: tuple[int, bytes] | None = None
        # (number of the first block, bytes of whole blocks): consecutive small reads read a block
        # once, and four with one request.
        self._run: tuple[int, memoryview] | None = None

    def read_into(self, start: int, out: memoryview) -> None:
        """Fill all of `out` from byte `start` of the upload."""
        view, position = out.cast("B"), start
        while view:
            index, skipped = divmod(position, BLOCK_BYTES)
            n_block = self._block_size(index)
            if skipped == 0 and view.nbytes >= n_block > 0:
                n = self._run_bytes(index, view.nbytes)
                self._read_run(index, view[:n])
            elif skipped < n_block:
                block = self._load_block(index)
                n = min(view.nbytes, n_block - skipped)
                view[:n] = block[skipped : skipped + n]
            else:
                raise ShortObject(f"byte {position} lies beyond the {self._size} of an upload")
            view, position = view[n:], position + n

    def read_at(self, start: int, length: int) -> bytes:
        """`length` bytes of the upload from byte `start` on."""
        out = bytearray(length)
        self.read_into(start, memoryview(out))
        return bytes(out)

    def pieces(self, start: int, end: int) -> Iterator[memoryview]:
        """The bytes [start, end), at most a MiB at a time."""
        position, n_blocks = start, 1
        while position < end:
            index, skipped = divmod(position, BLOCK_BYTES)
            last = -(-end // BLOCK_BYTES)
            size = self._run_bytes(index, min(n_blocks, last - index) * BLOCK_BYTES)
            run = allocate_buffer(size)
            self._read_run(index, run)
            piece = run[skipped : skipped + end - position]
            del run
            for at in range(0, piece.nbytes, BLOCK_BYTES):
                yield piece[at : at + BLOCK_BYTES]
            position += piece.nbytes
            n_blocks = min(2 * n_blocks, _RUN_BLOCKS)

    def _load_block(self, index: int) -> memoryview:
        """The block, and in the same memory those that follow it in the kept run."""
        kept = self._run
        end = kept[0] + -(-kept[1].nbytes // BLOCK_BYTES) if kept is not None else 0
        if kept is None or not kept[0] <= index < end:
            n_blocks = _RUN_BLOCKS if kept is not None and index == end else 1
            self._run = kept = None  # so that its memory is free
            run = memoryview(bytearray(self._run_bytes(index, n_blocks * BLOCK_BYTES)))
            self._read_run(index, run)
            kept = self._run = (index, run)
        return kept[1][(index - kept[0]) * BLOCK_BYTES :]

    def _block_size(self, index: int) -> int:
        self._checksum(index)
        return min(BLOCK_BYTES, self._size - index * BLOCK_BYTES)

    def _run_bytes(self, index: int, limit: int) -> int:
        """The bytes of the whole blocks from this one on that fit into `limit` and one request."""
        self._checksum(index)  # which learns the size
        rest = self._size - index * BLOCK_BYTES
        if rest <= min(limit, _RUN_BLOCKS * BLOCK_BYTES):
            return rest
        return min(limit // BLOCK_BYTES, _RUN_BLOCKS) * BLOCK_BYTES

    def _read_run(self, index: int, out: memoryview) -> None:
        """Fill `out` with whole blocks. What does not check is read again, block by block."""
        blocks = [
            (index + at // BLOCK_BYTES, out[at : at + BLOCK_BYTES])
            for at in range(0, out.nbytes, BLOCK_BYTES)
        ]
        if len(blocks) > 1:
            with suppress(ObjectNotFound, ShortObject), translated_store_errors():
                self._reg.store.get_into(landing_key(self._id), index * BLOCK_BYTES, out)
                blocks = [
                    (number, block)
                    for number, block in blocks
                    if not block_checks(block, number, self._checksum(number))
                ]
        for number, block in blocks:
            self._read_block(number, block)

    def _read_block(self, index: int, out: memoryview) -> None:
        checksum = self._checksum(index)
        why, is_gone = "its bytes are gone", True
        # Read twice before the upload is called damaged: the second time may not come from memory.
        for _ in range(2):
            try:
                with translated_store_errors():
                    self._reg.store.get_into(landing_key(self._id), index * BLOCK_BYTES, out)
            except ObjectNotFound:
                continue
            except ShortObject:
                why = "it is cut short"
                continue
            if block_checks(out, index, checksum):
                return
            why, is_gone = f"MiB {index} has another checksum", False
        error = mark_damaged(self._reg, self._id, why, is_gone=is_gone)
        self._window = None
        # Not damaged, but ingested, deleted or replaced: the row tells.
        raise error if error is not None else self._changed()

    def _changed(self) -> Exception:
        try:
            self._checksum(0)
        except (ObjectNotFound, UploadDamaged) as exc:
            return exc
        return ObjectNotFound(f"upload {self._id} was replaced while it was read; read it again")

    def _checksum(self, index: int) -> bytes:
        number, place = divmod(index, _WINDOW_BLOCKS)
        window = self._window
        if window is None or window[0] != number:
            window = self._window = (number, self._load_window(number))
        return window[1][place * CHECKSUM_BYTES : (place + 1) * CHECKSUM_BYTES]

    def _load_window(self, number: int) -> bytes:
        n_bytes = _WINDOW_BLOCKS * CHECKSUM_BYTES
        part = func.substr(Landing.checksums, number * n_bytes + 1, n_bytes)
        with self._reg.db.read() as session:
            row = session.execute(
                select(Landing.state, Landing.sha256, Landing.size, part).where(
                    Landing.id == self._id
                )
            ).one_or_none()
        if row is None or row[0] == "condemned":
            raise ObjectNotFound(f"upload {self._id} was ingested or deleted")
        state, sha256, self._size, checksums = row
        if state != "complete":
            raise damage_of(sha256)
        if checksums is None:  # an older release received it
            return self._add_checksums(sha256)[number * n_bytes : (number + 1) * n_bytes]
        return bytes(checksums)

    def _add_checksums(self, sha256: str) -> bytes:
        """Read the whole upload once, compare its SHA-256, and store its checksums."""
        hashes = hashes_of(self._reg, landing_key(self._id), self._size)
        if hashes is None or hashes.sha256 != sha256:
            error = mark_damaged(self._reg, self._id, "it has another SHA-256")
            raise error if error is not None else self._changed()
        if not self._reg.db.is_read_only:
            with self._reg.db.write() as session:
                row = session.get(Landing, self._id)
                if row is not None:
                    row.checksums = hashes.checksums
        return hashes.checksums


def hashes_of(reg: Registry, key: str, size: int) -> Hashes | None:
    """The hashes of an object of the store; None if it is gone or has another size."""
    return hashes_in(reg.store, key, size)

"""Encodes stored tensors again against the bases that they have, frame by frame.

New frames are put, read back and verified. One transaction then switches the tensors that no other
process has changed. Only a frame that became smaller is replaced.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from deltahub.codecs.frames import FrameRange, TensorSpec
from deltahub.registry.db.batches import PART_TENSORS
from deltahub.registry.db.models import Tensor
from deltahub.registry.db.session import WriteSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict, DataLost, DeltaCycle, TensorNotFound
from deltahub.registry.failpoints import reached
from deltahub.registry.packs.encode import encode_part
from deltahub.registry.packs.encoder_generation import (
    generation_of,
    is_up_to_date,
    standalone_generation,
    would_encode_same,
)
from deltahub.registry.packs.locations import FrameLocation, TensorLocation, is_unchanged, locate
from deltahub.registry.packs.reading.chain import TensorGone
from deltahub.registry.packs.switch import BaseGone, store_and_switch, switch_tensor
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.reencode.survey import mark_tried
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError

log = logging.getLogger(__name__)

# Packs of decoded bytes between two transactions. A kill loses at most so much work.
PACKS_PER_BATCH = 2
# Attempts at a batch whose packs or bases other processes change.
MAX_TRIES = 3


@dataclass
class ReencodeResult:
    """Numbers of tensors by outcome. failed: row -> the reason why it could not be read."""

    replaced: int = 0
    saved_bytes: int = 0
    not_smaller: int = 0
    changed: int = 0  # by another process, or deleted
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, other: "ReencodeResult") -> None:
        self.replaced += other.replaced
        self.saved_bytes += other.saved_bytes
        self.not_smaller += other.not_smaller
        self.changed += other.changed
        self.failed.update(other.failed)


@dataclass(frozen=True)
class _Attempt:
    """A tensor that was tried. is_new: its frames are in the spool, some of them smaller.

    keeps: some of the spooled frames are copies of stored ones.
    """

    location: TensorLocation
    is_new: bool
    keeps: bool


class _ReadFailed(Exception):
    """A tensor that could not be read from its location."""

    def __init__(self, location: TensorLocation, reason: str) -> None:
        super().__init__(reason)
        self.location = location


@contextmanager
def _naming_tensor(location: TensorLocation) -> Iterator[None]:
    """Turn read errors into _ReadFailed of this tensor; errors of a spool may be of another one."""
    try:
        yield
    except (DataLost, StoreError) as exc:
        raise _ReadFailed(location, str(exc)) from exc


class FrameReencoder:
    """Encodes tensors of one domain again. A killed run may be repeated.

    The effort is that of the registry's settings. Not shared between threads.
    """

    def __init__(self, reg: Registry, reader: FileReader, domain_id: int) -> None:
        self._reg = reg
        self._reader = reader
        self._domain_id = domain_id
        self._effort = reg.settings.effort
        self._read_base = reader.base_reader(domain_id)
        self._done = ReencodeResult()

    def run(
        self, tensors: Iterable[int], progress: Callable[[int], None] = lambda tensor: None
    ) -> ReencodeResult:
        """Try each of these rows.

        progress(tensor): called after each, and again if its batch is repeated. An exception of
        progress ends the run; finished switches stay.
        """
        todo = deque(tensors)
        tries = 0
        while todo:
            try:
                n_tensors = self._run_batch(todo, progress)
            except _ReadFailed as exc:  # when some of its frames were in the spool
                self._done.failed[exc.location.id] = str(exc)
                todo.remove(exc.location.id)
            except (TensorGone, Conflict) as exc:
                # A tensor or base was deleted meanwhile, or gc condemned a pack.
                tries += 1
                if tries == MAX_TRIES:
                    raise
                log.info("tensors of domain %d are tried once more: %s", self._domain_id, exc)
            else:
                tries = 0
                for _ in range(n_tensors):
                    todo.popleft()
        return self._done

    def _run_batch(self, todo: Iterable[int], progress: Callable[[int], None]) -> int:
        """The number of tensors done, from the start of todo."""
        pack_bytes = self._reg.settings.pack_bytes
        attempts: list[_Attempt] = []
        done = ReencodeResult()
        n_tensors, n_bytes = 0, 0
        with PackSpool(self._reg, self._reader, self._domain_id) as spool:
            for tensor_id in todo:
                is_full = spool.size_bytes >= pack_bytes // 2 or n_tensors >= PART_TENSORS
                if is_full or n_bytes >= PACKS_PER_BATCH * pack_bytes:
                    break
                n_tensors += 1
                location = self._reader.locate([tensor_id]).get(tensor_id)
                if location is None or location.domain_id != self._domain_id:
                    done.changed += 1
                else:
                    n_bytes += location.size
                    try:
                        attempts.append(self._reencode(spool, location))
                    except _ReadFailed as exc:
                        if self._reader.locate([tensor_id]).get(tensor_id) != location:
                            raise Conflict(f"it was moved or deleted under way: {exc}") from exc
                        if location.hash in spool:
                            raise
                        done.failed[tensor_id] = str(exc)
                progress(tensor_id)
            if attempts:  # also where none became smaller: they are marked
                store_and_switch(self._reg, spool, partial(self._switch, attempts, done))
                reached("recompress.switch.after_commit")
        self._done.add(done)
        return n_tensors

    def _reencode(self, spool: PackSpool, location: TensorLocation) -> _Attempt:
        """Add the tensor's frames to the spool, if at least one of them became smaller."""
        generation = self._generation(location)
        kept: list[FrameLocation] = []
        is_new = False
        for frame in location.frames:
            with _naming_tensor(location):
                better = self._reencode_frame(location, frame)
            if better is not None and not is_new:
                is_new = True
                for earlier in kept:
                    spool.add(self._read_frame(location, earlier), generation)
            if better is not None:
                spool.add(better, generation)
                continue
            kept.append(frame)
            if is_new:
                spool.add(self._read_frame(location, frame), generation)
        return _Attempt(location, is_new, bool(kept))

    def _generation(self, location: TensorLocation) -> int:
        """The encoder generation to store with a tensor that was tried."""
        return generation_of(self._effort) if location.bases else standalone_generation()

    def _reencode_frame(self, location: TensorLocation, frame: FrameLocation) -> bytes | None:
        """A smaller frame of the same elements, or None. Memory: four frames."""
        header = self._reader.frames.open(frame).view.header
        made = header.codec, header.codec_version, header.dtype
        if is_up_to_date(*made, header.effort, self._effort):
            return None
        source = bytearray(frame.size)
        self._reader.read_tensor_into(location.id, frame.start, memoryview(source))
        if header.effort >= self._effort and would_encode_same(*made, memoryview(source)):
            return None
        spec = TensorSpec(header.tensor, header.dtype, 1, header.tensor_count)
        part = FrameRange(header.start, header.count, header.rows, header.columns)
        threads = self._reg.settings.codec_threads
        encoded = encode_part(
            spec, part, source, header.base, self._read_base, self._effort, threads
        )
        return encoded if len(encoded) < frame.length else None

    def _read_frame(self, location: TensorLocation, frame: FrameLocation) -> memoryview:
        with _naming_tensor(location):
            return self._reader.frames.read(frame, 0, frame.length)

    def _switch(
        self,
        attempts: list[_Attempt],
        done: ReencodeResult,
        session: WriteSession,
        sealed: SealedPacks,
    ) -> None:
        """Switch the tensors that are unchanged since they were read; mark the others as tried."""
        not_smaller: list[TensorLocation] = []
        now = locate(session, [each.location.id for each in attempts])
        for each in attempts:
            # Frames without a switch are dead bytes of the new pack, which gc collects.
            if not is_unchanged(each.location, now.get(each.location.id)):
                done.changed += 1
            elif each.is_new and self._switch_one(session, sealed, each):
                done.replaced += 1
                done.saved_bytes += _stored_bytes(each.location.frames) - _stored_bytes(
                    sealed.tensors[each.location.hash].frames
                )
            else:
                not_smaller.append(each.location)
        done.not_smaller += len(not_smaller)
        for generation, tensors in groupby(
            sorted(not_smaller, key=self._generation), self._generation
        ):
            mark_tried(session, (tensor.id for tensor in tensors), generation)
        reached("recompress.switch.before_commit")

    def _switch_one(self, session: WriteSession, sealed: SealedPacks, attempt: _Attempt) -> bool:
        row = session.get_one(Tensor, attempt.location.id)
        was_foreign = row.is_foreign
        tensor = sealed.tensors[attempt.location.hash]
        try:
            with session.begin_nested():
                max_depth = self._reg.settings.max_depth
                switch_tensor(session, row.id, tensor.frames, tensor.bases, max_depth)
        except (DeltaCycle, BaseGone, TensorNotFound) as exc:
            log.info("tensor %s stays as it is: %s", attempt.location.hash.hex(), exc)
            return False
        # Only the namespace of a client decodes the frames that it encoded.
        row.is_foreign = was_foreign and attempt.keeps
        return True


def _stored_bytes(frames: Iterable[FrameLocation]) -> int:
    return sum(frame.length for frame in frames)

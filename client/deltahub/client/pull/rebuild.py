"""Rebuilds one file by its recipe, from local tensors, frames and plain ranges."""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from deltahub.client.api.endpoints import Api
from deltahub.client.api.wire import Reply, body_ended_early
from deltahub.client.errors import BadResponse, TensorNotFound, VerificationFailed
from deltahub.client.local.paths import read_at, write_at
from deltahub.client.local.tensor_sources import MissingTensor, Sources
from deltahub.client.pull.frame_stream import FrameReader
from deltahub.client.pull.journal import Journal
from deltahub.client.pull.links.batch import LinkedBatch, ask_for_links
from deltahub.client.pull.links.source import LinkSource
from deltahub.client.pull.plan import (
    RebuildPlan,
    Slot,
    adjacent_slots,
    is_worth_a_frame,
    plan_rebuild,
)
from deltahub.client.records import Entry, PlannedTensor
from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.recipe import Literal, Recipe, TensorRef

_CHUNK = 1 << 20
_MAX_WORKERS = 4


@dataclass(frozen=True)
class Target:
    """An open file that is being written, and the entry that it will hold."""

    fd: int
    path: Path
    repository: str
    commit: str
    entry: Entry


class _DamagedTensor(Exception):
    """A tensor with wrong bytes. It is requested again as plain bytes."""

    def __init__(self, slot: Slot) -> None:
        super().__init__(slot.tensor.hex())
        self.slot = slot


def slots_of(recipe: Recipe) -> tuple[list[Slot], list[tuple[int, bytes]]]:
    """The slots of the recipe's tensors, and its literals as (offset, bytes)."""
    slots: list[Slot] = []
    literals: list[tuple[int, bytes]] = []
    offset = 0
    for segment in recipe.segments:
        if isinstance(segment, Literal):
            literals.append((offset, segment.data))
            offset += len(segment.data)
        elif isinstance(segment, TensorRef):
            slots.append(Slot(segment.tensor, offset, segment.size))
            offset += segment.size
    return slots, literals


class Rebuild:
    """Rebuilds one file. Each slot is verified by BLAKE3 before the journal records it."""

    def __init__(
        self,
        api: Api,
        target: Target,
        journal: Journal,
        sources: Sources,
        links: LinkSource,
        *,
        on_done: Callable[[int], None],
    ) -> None:
        self._api = api
        self._target = target
        self._journal = journal
        self._sources = sources
        self._links = links
        self._on_done = on_done
        self._lock = threading.Lock()
        self._to_repeat: list[Slot] = []
        self._stored: Mapping[bytes, PlannedTensor] = {}
        self.received = 0
        self.reused = 0

    def run(self, recipe: Recipe, stored: Mapping[bytes, PlannedTensor]) -> None:
        """Fills the file. VerificationFailed when a tensor is wrong twice."""
        slots, literals = slots_of(recipe)
        for offset, data in literals:
            write_at(self._target.fd, memoryview(data), offset, self._target.path)
        self._stored = stored
        missing = self._resume(slots)
        wanted = {slot.tensor for slot in missing}
        for tensor in list(wanted):
            wanted.update(self._bases_of(tensor))
        self._sources.look_up(wanted)
        while True:
            rest = [slot for slot in missing if slot.start not in self._journal.done]
            local, has_links = self._local(wanted), self._links.is_on
            plan = plan_rebuild(rest, stored, local, has_links=has_links)
            # A failed copy is forgotten, so that the next plan requests the tensor from the hub.
            if self._copy(plan.copies) == 0:
                break
        self._fetch(plan)
        for slot in plan.repeats:
            if self._copy([slot]) > 0:
                self._fetch_range([slot])

    def _bases_of(self, tensor: bytes) -> list[bytes]:
        found = self._stored.get(tensor)
        return [bytes.fromhex(base) for base in found.bases] if found else []

    def _local(self, tensors: Iterable[bytes]) -> Collection[bytes]:
        return {tensor for tensor in tensors if tensor in self._sources}

    # -- local bytes -----------------------------------------------------------------------

    def _resume(self, slots: list[Slot]) -> list[Slot]:
        """The unfinished slots. Verifies those that the journal of an earlier process lists."""
        missing: list[Slot] = []
        for slot in slots:
            if self._journal.done.get(slot.start) == slot.size and self._is_written(slot):
                self._finish(slot, reused=slot.size, is_new=False)
            else:
                self._journal.done.pop(slot.start, None)
                missing.append(slot)
        return missing

    def _copy(self, slots: list[Slot]) -> int:
        """Copies local tensors into the file; the number of copies that failed."""

        def copy(slot: Slot) -> int:
            try:
                self._sources.copy_to(slot.tensor, self._target.fd, slot.start)
                is_right = self._is_written(slot)
            except MissingTensor:
                is_right = False
            if is_right:
                self._finish(slot, reused=slot.size)
                return 0
            self._sources.forget(slot.tensor)
            return 1

        with ThreadPoolExecutor(_workers(len(slots))) as pool:
            return sum(pool.map(copy, slots))

    def _is_written(self, slot: Slot) -> bool:
        """Whether the file has the tensor's bytes in this slot."""
        digest = blake3()
        buffer = memoryview(bytearray(min(_CHUNK, slot.size)))
        try:
            for done in range(0, slot.size, _CHUNK):
                part = buffer[: min(_CHUNK, slot.size - done)]
                read_at(self._target.fd, part, slot.start + done)
                digest.update(part)
        except EOFError:
            return False
        return digest.digest() == slot.tensor

    def _saved_by_delta(self, slot: Slot) -> int:
        """Bytes of a slot that the hub did not send because the slot came as a delta."""
        stored = self._stored[slot.tensor]
        return max(0, slot.size - stored.encoded_size) if stored.bases else 0

    def _finish(self, slot: Slot, *, reused: int, is_new: bool = True) -> None:
        """Records a slot as done. reused: bytes of it that the hub did not send."""
        with self._lock:
            if is_new:
                self._journal.add(slot.start, slot.size)
            self.reused += reused
        self._sources.add(slot.tensor, self._target.path, slot.start, slot.size)
        self._on_done(slot.size)

    # -- bytes from the hub ----------------------------------------------------------------

    def _fetch(self, plan: RebuildPlan) -> None:
        """Fetches the waves one after another, and the ranges together with the first wave."""
        ranges = plan.ranges
        for wave in plan.waves or [[]]:
            count = len(wave) + len(ranges)
            with ThreadPoolExecutor(_workers(count)) as pool:
                tasks = [pool.submit(self._fetch_batch, batch, count) for batch in wave]
                tasks += [pool.submit(self._fetch_range, each) for each in ranges]
                try:
                    for task in tasks:
                        task.result()
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
            ranges = []
        for slot in self._to_repeat:
            self._fetch_range([slot])
        self._to_repeat.clear()

    def _fetch_batch(self, batch: list[Slot], n_tasks: int) -> None:
        threads = max(1, (os.cpu_count() or 1) // _workers(n_tasks))
        reader = FrameReader(
            self._target.fd, str(self._target.path), self._sources, threads, self._count_received
        )
        rest = self._fetch_links(batch, reader)
        framed: list[Slot] = []
        plain: list[Slot] = []
        for slot in rest:
            is_framed = is_worth_a_frame(slot, self._stored[slot.tensor])
            (framed if is_framed else plain).append(slot)
        self._fetch_frames(framed, reader)
        for each in adjacent_slots(plain):
            self._fetch_range(each)

    def _fetch_links(self, batch: list[Slot], reader: FrameReader) -> list[Slot]:
        """Reads tensors from the object store; those that do not come from there."""
        if not self._links.is_on:
            return batch
        target = self._target
        ask = ask_for_links(self._api, target.repository, target.commit, self._links.origin)

        def finish(slot: Slot) -> None:
            self._finish(slot, reused=self._saved_by_delta(slot))

        return LinkedBatch(self._links, reader, ask, self._is_written, finish).run(batch)

    def _fetch_frames(self, pending: list[Slot], reader: FrameReader) -> None:
        finished = 0

        def attempt() -> None:
            nonlocal finished
            requested = [slot.tensor.hex() for slot in pending]
            target = self._target
            with self._api.open_frames(target.repository, target.commit, requested) as reply:
                while pending:
                    slot = pending[0]
                    try:
                        reader.read_tensor(reply, slot)
                    except (CodecError, MissingTensor) as exc:
                        raise _DamagedTensor(slot) from exc
                    if not self._is_written(slot):
                        raise _DamagedTensor(slot)
                    self._finish(pending.pop(0), reused=self._saved_by_delta(slot))
                    finished += slot.size
                reply.drain()

        while pending:
            try:
                self._api.transport.with_retries(attempt, lambda: finished)
            except TensorNotFound:
                # Since the plan was read, a base has been made private or deleted. Plain bytes of
                # the file need no base.
                with self._lock:
                    self._to_repeat.extend(pending)
                pending.clear()
            except _DamagedTensor as exc:
                # The rest of that answer cannot be trusted. Plain bytes of this tensor also help
                # if the damage is in the local base.
                for base in self._bases_of(exc.slot.tensor):
                    self._sources.is_verified(base)
                with self._lock:
                    self._to_repeat.append(exc.slot)
                pending.remove(exc.slot)

    def _fetch_range(self, slots: list[Slot]) -> None:
        """Fetches adjacent slots as one range. Verifies each while it arrives; one retry each."""
        pending = list(slots)
        failed: set[int] = set()
        cursor = _Cursor()

        def begin() -> int:
            return pending[0].start if pending else slots[-1].end

        def attempt() -> None:
            target = self._target
            start, end = begin() + cursor.done, slots[-1].end
            with self._api.open_file(
                target.repository, target.commit, target.entry, start, end
            ) as reply:
                if reply.status != (200 if (start, end) == (0, target.entry.size) else 206):
                    raise BadResponse(f"the hub answered {reply.status} to a range")
                while pending:
                    slot = pending[0]
                    self._stream(reply, slot, cursor)
                    is_right = cursor.digest.digest() == slot.tensor
                    cursor.reset()
                    if is_right:
                        self._finish(pending.pop(0), reused=0)
                    elif slot.start in failed:
                        raise VerificationFailed(
                            f"{target.entry.path}: bytes {slot.start} to {slot.end} were wrong "
                            "twice; the connection or the hub is damaged"
                        )
                    else:
                        failed.add(slot.start)
                        raise ConnectionResetError("the hub's bytes did not check")
                reply.drain()

        while pending:
            self._api.transport.with_retries(attempt, lambda: begin() + cursor.done)

    def _stream(self, reply: Reply, slot: Slot, cursor: "_Cursor") -> None:
        while cursor.done < slot.size:
            wanted = min(_CHUNK, slot.size - cursor.done)
            part = cursor.buffer[: reply.read_up_to(cursor.buffer[:wanted])]
            write_at(self._target.fd, part, slot.start + cursor.done, self._target.path)
            cursor.digest.update(part)
            cursor.done += len(part)
            self._count_received(len(part))
            if len(part) < wanted:
                raise body_ended_early()

    def _count_received(self, size: int) -> None:
        with self._lock:
            self.received += size


class _Cursor:
    """The received part of one slot, kept when a connection breaks."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_CHUNK))
        self.reset()

    def reset(self) -> None:
        self.digest = blake3()
        self.done = 0


def _workers(n_tasks: int) -> int:
    return max(1, min(_MAX_WORKERS, max(2, os.cpu_count() or 1), n_tasks))

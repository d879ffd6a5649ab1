"""Pulls a step into memory: one difference from the step that is held, or all of it."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from deltahub.client.api.endpoints import Api
from deltahub.client.api.wire import Reply, odd_answer
from deltahub.client.errors import NotReady, RevisionNotFound, VerificationFailed
from deltahub.client.local.tensor_sources import MissingTensor
from deltahub.client.progress import Progress
from deltahub.client.pull.frame_stream import read_view
from deltahub.client.pull.plan import BATCH_BYTES, BATCH_TENSORS
from deltahub.client.records import PlannedTensor, Revision
from deltahub.client.steps.hub_calls import newest_step, open_differences
from deltahub.client.steps.memory import HeldStep, HeldTensor, empty_bytes
from deltahub.client.steps.records import PulledStep
from deltahub.client.steps.stored import StoredStep, read_step
from deltahub.codecs.errors import CodecError, CorruptFrame
from deltahub.codecs.files.recipe import TensorRef
from deltahub.codecs.frames import FrameView, assemble

# How long a pull waits for the ingest of a step, and between two looks.
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.5


@dataclass
class _Wanted:
    """A tensor that has to come. base: the held tensor that it may be a difference from."""

    ref: TensorRef
    stored: PlannedTensor | None
    base: HeldTensor | None
    done: int = 0
    data: HeldTensor = field(init=False)

    def __post_init__(self) -> None:
        ref = self.ref
        self.data = HeldTensor(ref.name, ref.tensor, ref.dtype, ref.shape, empty_bytes(ref.size))

    @property
    def is_stored_so(self) -> bool:
        """Whether the stored frames are the ones to read: from what is held, or from nothing."""
        if self.stored is None or self.stored.encoded_size >= self.ref.size:
            return False
        bases = [] if self.base is None else [self.base.tensor.hex()]
        return list(self.stored.bases) == bases


class _Damaged(Exception):
    """A tensor that came with wrong bytes."""

    def __init__(self, wanted: _Wanted, reason: str) -> None:
        super().__init__(reason)
        self.wanted = wanted


class StepPull:
    """One pull of a step. Every tensor is verified by its BLAKE3, also those that were held."""

    def __init__(self, api: Api, progress: Progress, run: str, number: int | None) -> None:
        """number: None for the newest step."""
        self._api = api
        self._progress = progress
        self._run = run
        self._number = number
        self._threads = max(1, os.cpu_count() or 1)
        self._received = 0
        self._held: HeldStep | None = None

    def run(self, held: HeldStep | None) -> tuple[PulledStep, HeldStep]:
        """held: the step that is here, from which differences may be."""
        with self._api.transport.reporting_waits(self._progress.note):
            number = self._number
            if number is None:
                number = newest_step(self._api, self._run)
            found = self._api.get_revision(self._run, f"step-{number}")
            whole = self._read(found)
            self._received += whole.n_bytes
            self._held = held
            self._forget_dropped()
            kept, wanted = _compare(whole, self._held)
            total = sum(each.ref.size for each in wanted)
            with self._progress.stage(f"pull step {number}", total) as stage:
                self._fetch(found.commit, wanted, stage.advance)
        tensors = kept | {each.data.name or "": each.data for each in wanted}
        now = HeldStep(number, found.commit, dict(sorted(tensors.items())), is_shared=True)
        pulled = PulledStep(
            run=self._run,
            number=number,
            commit=found.commit,
            since=None if self._held is None else self._held.number,
            changed=tuple(sorted(each.ref.name or "" for each in wanted)),
            size=sum(each.size for each in now),
            received=self._received,
        )
        return pulled, now

    def _read(self, found: Revision) -> StoredStep:
        """The step's tensors. Waits while the hub still stores files that came whole; NotReady."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return read_step(self._api, self._run, found)
            except NotReady:
                if time.monotonic() > end:
                    raise
            found = self._api.get_revision(self._run, found.commit)
            time.sleep(_PAUSE_S)

    def _forget_dropped(self) -> bool:
        """Forget the held step if the hub no longer has it, and so makes no difference from it.

        Returns whether it was forgotten.
        """
        held = self._held
        if held is None or self._api.find_revision(self._run, held.commit) is not None:
            return False
        self._progress.note(
            f"the hub no longer has step {held.number}: the tensors come whole, not as differences"
        )
        self._held = None
        return True

    # -- bytes from the hub ----------------------------------------------------------------

    def _fetch(
        self,
        commit: str,
        wanted: list[_Wanted],
        on_done: Callable[[int], None],
    ) -> None:
        left = wanted
        is_repeat = False
        while left:
            damaged = self._fetch_once(commit, left, on_done)
            if is_repeat and damaged:
                raise VerificationFailed(
                    f"{self._run}: {damaged[0].ref.name} came with wrong bytes twice: the"
                    " connection or the hub is damaged"
                )
            for each in damaged:
                # What is held may be what is wrong: the second try needs none of it.
                each.base, each.done = None, 0
            left, is_repeat = damaged, True

    def _fetch_once(
        self,
        commit: str,
        wanted: Sequence[_Wanted],
        on_done: Callable[[int], None],
    ) -> list[_Wanted]:
        """Fetches each tensor; those whose bytes were wrong."""
        damaged: list[_Wanted] = []
        for is_stored_so in (True, False):
            same = [each for each in wanted if each.is_stored_so == is_stored_so]
            for batch in _batches(same):
                pending = list(batch)
                while pending:
                    try:
                        if is_stored_so:
                            self._read_stored(commit, pending, on_done)
                        else:
                            self._read_differences(commit, pending, on_done)
                    except _Damaged as exc:
                        self._progress.note(f"{exc.wanted.ref.name} comes again: {exc}")
                        damaged.append(exc.wanted)
                        pending.remove(exc.wanted)
        return damaged

    def _read_stored(
        self,
        commit: str,
        pending: list[_Wanted],
        on_done: Callable[[int], None],
    ) -> None:
        """Reads frames as they are stored. Removes from `pending` what has come."""
        finished = 0

        def attempt() -> None:
            nonlocal finished
            ids = [each.ref.tensor.hex() for each in pending]
            with self._api.open_frames(self._run, commit, ids) as reply:
                while pending:
                    pending[0].done = 0
                    while pending[0].done < pending[0].ref.size:
                        self._read_frame(reply, pending[0])
                    finished += self._finish(pending.pop(0), on_done)
                reply.drain()

        if pending:
            self._api.transport.with_retries(attempt, lambda: finished)

    def _read_differences(
        self,
        commit: str,
        pending: list[_Wanted],
        on_done: Callable[[int], None],
    ) -> None:
        """Reads frames that the hub encodes for us, in as many answers as it takes."""
        reached = 0

        def attempt() -> None:
            nonlocal reached
            held = self._held
            pairs = [
                (each.ref.tensor, None if each.base is None or held is None else each.base.tensor)
                for each in pending
            ]
            has_bases = any(base is not None for _, base in pairs)
            base = held.commit if held is not None and has_bases else None
            asked = open_differences(self._api, self._run, commit, base, pairs, pending[0].done)
            with asked as reply:
                end = self._received + _length(reply)
                while pending and self._received < end:
                    reached += self._read_frame(reply, pending[0])
                    if pending[0].done == pending[0].ref.size:
                        self._finish(pending.pop(0), on_done)
                reply.drain()

        while pending:
            before = reached
            try:
                self._api.transport.with_retries(attempt, lambda: reached)
            except RevisionNotFound:
                # Retention may have dropped the held step since the pull began.
                if not self._forget_dropped():
                    raise
                continue
            if reached == before:
                raise VerificationFailed(f"{self._run}: the hub sent no frames of what was asked")

    def _read_frame(self, reply: Reply, wanted: _Wanted) -> int:
        """Decodes the next frame of a tensor into its place; the decoded bytes."""
        try:
            view = read_view(reply, self._count)
            header = view.header
            is_next = header.start_byte == wanted.done and header.tensor == wanted.ref.tensor
            if not is_next or header.tensor_size_bytes != wanted.ref.size:
                raise CorruptFrame("the hub sent a frame of something else")
            begin, end = view.stored_span(0, header.n_blocks)
            payload = bytearray(end - begin)
            reply.read_into(memoryview(payload))
            self._count(len(payload))
            out = wanted.data.view[wanted.done : wanted.done + header.size_bytes]
            base = _base_of(view, self._held)
            view.decode_into(0, header.n_blocks, payload, base, out, self._threads)
        except (CodecError, MissingTensor) as exc:
            raise _Damaged(wanted, str(exc)) from exc
        wanted.done += header.size_bytes
        return header.size_bytes

    def _finish(self, wanted: _Wanted, on_done: Callable[[int], None]) -> int:
        if not wanted.data.is_right():
            raise _Damaged(wanted, "the bytes do not have the tensor's hash")
        on_done(wanted.ref.size)
        return wanted.ref.size

    def _count(self, size: int) -> None:
        self._received += size


def _compare(
    whole: StoredStep, held: HeldStep | None
) -> tuple[dict[str, HeldTensor], list[_Wanted]]:
    """(tensors that are here already, by name; those that must come)."""
    kept: dict[str, HeldTensor] = {}
    wanted: list[_Wanted] = []
    for ref in whole.tensors:
        name = ref.name or ""
        old = None if held is None else held.tensors.get(name)
        is_like = old is not None and (old.dtype, old.shape) == (ref.dtype, ref.shape)
        if old is not None and is_like and old.tensor == ref.tensor and old.is_right():
            kept[name] = old
            continue
        is_base = old is not None and is_like and old.tensor != ref.tensor
        wanted.append(_Wanted(ref, whole.stored.get(ref.tensor), old if is_base else None))
    return kept, wanted


def _batches(wanted: Sequence[_Wanted]) -> Iterator[list[_Wanted]]:
    batch: list[_Wanted] = []
    size = 0
    for each in wanted:
        encoded = each.ref.size if each.stored is None else each.stored.encoded_size
        if batch and (size + encoded > BATCH_BYTES or len(batch) == BATCH_TENSORS):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += encoded
    if batch:
        yield batch


def _length(reply: Reply) -> int:
    text = reply.headers.get("Content-Length", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise odd_answer(reply.request, "it does not say how long it is")
    return int(text)


def _base_of(view: FrameView, held: HeldStep | None) -> memoryview | None:
    header = view.header
    if header.base is None:
        return None
    if held is None:
        raise MissingTensor(header.tensor)
    if header.base.is_plain:
        (segment,) = header.base.segments
        return held.part(segment.tensor, segment.start * header.dtype.itemsize, header.size_bytes)
    base = memoryview(bytearray(header.base_bytes(header.size_bytes)))
    assemble(header.base, header.dtype, 0, header.count, held.read, base)
    return base

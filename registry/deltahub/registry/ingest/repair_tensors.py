"""Repairs damaged stored tensors from files that are pushed with the same tensors.

A damaged block makes its tensor and all deltas of it unreadable. Each damaged tensor is stored
again without a base, read back and verified like a new tensor, and only then switched to.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from blake3 import blake3

from deltahub.codecs.files.recipe import TensorRef
from deltahub.codecs.frames import tensor_spec
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import DataLost
from deltahub.registry.losses.marks import clear_marks
from deltahub.registry.packs.encode import Read
from deltahub.registry.packs.holds import hold_for_job
from deltahub.registry.packs.locations import TensorLocation, is_unchanged, locate, resolve
from deltahub.registry.packs.switch import store_and_switch, switch_damaged
from deltahub.registry.packs.tensor_reader import RANGE_BYTES, TensorReader
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor of a pushed file: its domain, and a function that reads its bytes."""

    domain_id: int
    ref: TensorRef
    read: Read


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    """A stored tensor and a source of its bytes. is_lost: it is marked."""

    source: TensorSource
    location: TensorLocation
    is_lost: bool


def repair_tensors(
    reg: Registry,
    reader: TensorReader,
    sources: Iterable[TensorSource],
    job_id: str,
    progress: Callable[[int], None] = lambda n: None,
) -> None:
    """Store those of these tensors again that cannot be read from the store.

    All stored ones are read and held for the job. That is costly, so call this only after a file
    could not be rebuilt. A tensor whose upload is gone or damaged, too, stays as it is. The call
    may be repeated, and interrupted by a crash at any line. progress(n): called after every n
    bytes that were read or stored; may raise to stop. Memory: four frames, and 1 KiB per tensor.
    """
    damaged: dict[int, _StoredTensor] = {}
    for part in batches(sources, PART_TENSORS):
        for stored in _find_stored(reg, part, job_id):
            row = stored.location
            if row.id in damaged:
                continue
            if stored.is_lost or not _is_readable(reader, row, progress):
                damaged[row.id] = stored
    deltas = [each for each in damaged.values() if each.location.bases]
    _rewrite_all(reg, reader, [x for x in damaged.values() if not x.location.bases], progress)
    # Most deltas are readable again after their bases were repaired.
    is_readable = {x.location.id: _is_readable(reader, x.location, progress) for x in deltas}
    remaining = [each for each in deltas if not is_readable[each.location.id]]
    _rewrite_all(reg, reader, remaining, progress)
    read = [each.location.id for each in deltas if each.is_lost and each not in remaining]
    if read:
        with reg.db.write() as session:
            clear_marks(session, read)


def store_again(
    reg: Registry, reader: TensorReader, tensors: Iterable[tuple[TensorLocation, TensorRef, Read]]
) -> None:
    """Store these lost tensors again without a base, each from bytes that its `read` gives.

    They may have changed since they were located: then they stay. One whose bytes turn out to be
    other ones stays, too. The call may be interrupted by a crash at any line.
    """
    _rewrite_all(
        reg,
        reader,
        (
            _StoredTensor(TensorSource(row.domain_id, ref, read), row, is_lost=True)
            for row, ref, read in tensors
        ),
        lambda n: None,
    )


def _find_stored(
    reg: Registry, sources: Sequence[TensorSource], job_id: str
) -> Iterator[_StoredTensor]:
    """The tensors that are stored. They are held for the job."""
    for domain_id in dict.fromkeys(each.domain_id for each in sources):
        with reg.db.write() as session:
            here = [each for each in sources if each.domain_id == domain_id]
            found = resolve(session, domain_id, [each.ref.tensor for each in here])
            rows = {content: tensor.id for content, tensor in found.items()}
            lost = {content for content, tensor in found.items() if tensor.lost is not None}
            hold_for_job(session, rows.values(), job_id, reg.settings.hold_ttl_s)
            places = locate(session, rows.values())
        for each in here:
            if each.ref.tensor in rows:
                content = each.ref.tensor
                yield _StoredTensor(each, places[rows[content]], content in lost)


def _is_readable(
    reader: TensorReader, tensor: TensorLocation, progress: Callable[[int], None]
) -> bool:
    digest = blake3()
    buffer = memoryview(bytearray(min(RANGE_BYTES, tensor.size)))
    progress(0)
    try:
        for first_byte in range(0, tensor.size, RANGE_BYTES):
            out = buffer[: min(RANGE_BYTES, tensor.size - first_byte)]
            reader.read_tensor_into(tensor.id, first_byte, out)
            digest.update(out)
            progress(len(out))
    except DataLost as exc:
        log.warning("tensor %s cannot be read: %s", tensor.hash.hex(), exc)
        return False
    return digest.digest() == tensor.hash


def _rewrite_all(
    reg: Registry,
    reader: TensorReader,
    damaged: Iterable[_StoredTensor],
    progress: Callable[[int], None],
) -> None:
    """Store tensors again, about a pack at a time, so that a crash loses little work."""
    batch: list[_StoredTensor] = []
    n_bytes = 0
    for each in sorted(damaged, key=lambda each: each.location.domain_id):
        row = each.location
        is_full = len(batch) == PART_TENSORS or n_bytes + row.size > reg.settings.pack_bytes
        if batch and (is_full or row.domain_id != batch[0].location.domain_id):
            _rewrite_batch(reg, reader, batch, progress)
            batch, n_bytes = [], 0
        batch.append(each)
        n_bytes += row.size
    if batch:
        _rewrite_batch(reg, reader, batch, progress)


def _rewrite_batch(
    reg: Registry,
    reader: TensorReader,
    damaged: Sequence[_StoredTensor],
    progress: Callable[[int], None],
) -> None:
    """Store these tensors of one domain again, except those whose upload cannot be read."""

    def switch(session: WriteSession, sealed: SealedPacks) -> None:
        rows = [each.location for each in damaged]
        now = locate(session, [row.id for row in rows])
        frames = {
            row.id: sealed.tensors[row.hash].frames
            for row in rows
            if is_unchanged(row, now.get(row.id))  # else another job has stored it
        }
        switch_damaged(session, frames, reg.settings.max_depth)

    try:
        with PackSpool(reg, reader, damaged[0].location.domain_id) as spool:
            for each in damaged:
                ref = each.source.ref
                spec = tensor_spec(ref.tensor, ref.dtype, ref.shape)
                spool.encode(spec, each.source.read, progress=progress)
            store_and_switch(reg, spool, switch)
    except (DataLost, ObjectNotFound) as exc:
        if len(damaged) == 1:
            log.warning("tensor %s cannot be repaired: %s", damaged[0].location.hash.hex(), exc)
        else:
            for each in damaged:
                _rewrite_batch(reg, reader, [each], progress)
        return
    log.warning("repaired %d damaged tensors", len(damaged))

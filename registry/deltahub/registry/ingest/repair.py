"""Stored tensors that cannot be read any more, stored anew from the bytes of another upload.

A block of the store that changed takes all tensors with it that lie in it or are coded against it.
Whoever pushes a file with the same tensors brings them back: each is stored alone, read back and
proved like any other, and only then read from there.
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
from deltahub.registry.packs.encode import Read
from deltahub.registry.packs.holds import hold_for_job
from deltahub.registry.packs.locations import TensorLocation, is_unchanged, locate, resolve
from deltahub.registry.packs.switch import store_and_switch, switch_tensor
from deltahub.registry.packs.tensor_reader import RUN_BYTES, TensorReader
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor of an upload to a domain, and how to read its bytes."""

    domain_id: int
    ref: TensorRef
    read: Read


@dataclass(frozen=True, slots=True)
class _Stored:
    """A source of a tensor, and what is stored of the tensor."""

    source: TensorSource
    location: TensorLocation


def heal(
    reg: Registry,
    reader: TensorReader,
    sources: Iterable[TensorSource],
    job_id: str,
    progress: Callable[[int], None] = lambda n: None,
) -> None:
    """Make those of these tensors come back from the store that do not.

    All are read, which is work for when one has failed, and held for the job. One whose upload is
    gone or damaged, too, stays as it is. Safe to run twice, or to die at any line. progress(n):
    called after every n bytes that were read or stored; may raise to stop. Memory: four frames,
    and 1 KiB a tensor.
    """
    broken: dict[int, _Stored] = {}
    for part in batches(sources, PART_TENSORS):
        for stored in _stored(reg, part, job_id):
            row = stored.location
            if row.id not in broken and not _comes_back(reader, row, progress):
                broken[row.id] = stored
    deltas = [each for each in broken.values() if each.location.bases]
    _store_all_anew(reg, reader, [x for x in broken.values() if not x.location.bases], progress)
    # Most deltas are whole again once their bases are.
    left = [each for each in deltas if not _comes_back(reader, each.location, progress)]
    _store_all_anew(reg, reader, left, progress)


def _stored(reg: Registry, sources: Sequence[TensorSource], job_id: str) -> Iterator[_Stored]:
    """Those that have a row, held for the job."""
    for domain_id in dict.fromkeys(each.domain_id for each in sources):
        with reg.db.write() as session:
            here = [each for each in sources if each.domain_id == domain_id]
            found = resolve(session, domain_id, [each.ref.tensor for each in here])
            rows = {content: tensor.id for content, tensor in found.items()}
            hold_for_job(session, rows.values(), job_id, reg.settings.hold_ttl_s)
            places = locate(session, rows.values())
        for each in here:
            if each.ref.tensor in rows:
                yield _Stored(each, places[rows[each.ref.tensor]])


def _comes_back(
    reader: TensorReader, tensor: TensorLocation, progress: Callable[[int], None]
) -> bool:
    digest = blake3()
    room = memoryview(bytearray(min(RUN_BYTES, tensor.size)))
    progress(0)
    try:
        for first_byte in range(0, tensor.size, RUN_BYTES):
            out = room[: min(RUN_BYTES, tensor.size - first_byte)]
            reader.read_tensor_into(tensor.id, first_byte, out)
            digest.update(out)
            progress(len(out))
    except DataLost as exc:
        log.warning("tensor %s cannot be read: %s", tensor.hash.hex(), exc)
        return False
    return digest.digest() == tensor.hash


def _store_all_anew(
    reg: Registry,
    reader: TensorReader,
    broken: Iterable[_Stored],
    progress: Callable[[int], None],
) -> None:
    """About a pack at a time, so that what is done stays done."""
    together: list[_Stored] = []
    n_bytes = 0
    for each in sorted(broken, key=lambda each: each.location.domain_id):
        row = each.location
        is_full = len(together) == PART_TENSORS or n_bytes + row.size > reg.settings.pack_bytes
        if together and (is_full or row.domain_id != together[0].location.domain_id):
            _store_anew(reg, reader, together, progress)
            together, n_bytes = [], 0
        together.append(each)
        n_bytes += row.size
    if together:
        _store_anew(reg, reader, together, progress)


def _store_anew(
    reg: Registry,
    reader: TensorReader,
    broken: Sequence[_Stored],
    progress: Callable[[int], None],
) -> None:
    """Store these tensors of one domain again, all but those whose upload cannot be read."""

    def switch(session: WriteSession, sealed: SealedPacks) -> None:
        now = locate(session, [each.location.id for each in broken])
        for each in broken:
            row = each.location
            if is_unchanged(row, now.get(row.id)):  # else another job has stored it again
                frames = sealed.tensors[row.hash].frames
                switch_tensor(session, row.id, frames, (), reg.settings.max_depth)

    try:
        with PackSpool(reg, reader, broken[0].location.domain_id) as spool:
            for each in broken:
                ref = each.source.ref
                spec = tensor_spec(ref.tensor, ref.dtype, ref.shape)
                spool.encode(spec, each.source.read, progress=progress)
            store_and_switch(reg, spool, switch)
    except (DataLost, ObjectNotFound) as exc:
        if len(broken) == 1:
            log.warning("tensor %s cannot be stored anew: %s", broken[0].location.hash.hex(), exc)
        else:
            for each in broken:
                _store_anew(reg, reader, [each], progress)
        return
    log.warning("stored %d damaged tensors anew", len(broken))

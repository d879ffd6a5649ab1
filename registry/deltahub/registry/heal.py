"""Stored tensors that cannot be read any more, stored anew from bytes that somebody has brought.

A block of the store that changed takes all tensors with it that lie in it or are coded against it.
Whoever pushes a file with the same tensors brings them back: each is stored alone, read back and
proved like any other, and only then read from there.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blake3 import blake3

from deltahub.codecs.frame import tensor_spec
from deltahub.codecs.recipe import TensorRef
from deltahub.registry.db.models import Tensor
from deltahub.registry.encode import Read, encode_tensor
from deltahub.registry.errors import DataLost
from deltahub.registry.locations import resolve
from deltahub.registry.packs import PackSpool, frame_limit
from deltahub.registry.publish import make_live, switch_tensor
from deltahub.registry.registry import Registry
from deltahub.registry.tensor_reader import RUN_BYTES, TensorReader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Brought:
    """A tensor that somebody has brought to a domain, and how to read its bytes."""

    domain_id: int
    ref: TensorRef
    read: Read


def heal(
    reg: Registry,
    reader: TensorReader,
    brought: Iterable[Brought],
    check: Callable[[], None] = lambda: None,
) -> int:
    """How many of these tensors did not come back from the store, and do so now.

    All are read, which is work for when one has failed. Safe to run twice, or to die at any line.
    check(): called for each tensor; may raise to stop. Memory: three frames.
    """
    broken: dict[int, dict[int, Brought]] = {}  # by the domain that has the row, by row
    for each in brought:
        check()
        with reg.db.read() as session:
            row = resolve(session, each.domain_id, [each.ref.tensor]).get(each.ref.tensor)
        if row is not None and not _comes_back(reader, row):
            broken.setdefault(row.domain_id, {})[row.id] = each
    for domain_id, tensors in broken.items():
        _store_anew(reg, reader, domain_id, tensors)
    return sum(map(len, broken.values()))


def _comes_back(reader: TensorReader, row: Tensor) -> bool:
    digest = blake3()
    room = memoryview(bytearray(min(RUN_BYTES, row.size)))
    try:
        for first_byte in range(0, row.size, RUN_BYTES):
            out = room[: min(RUN_BYTES, row.size - first_byte)]
            reader.read_tensor_into(row.id, first_byte, out)
            digest.update(out)
    except DataLost as exc:
        log.warning("tensor %s cannot be read: %s", row.hash.hex(), exc)
        return False
    return digest.digest() == row.hash


def _store_anew(
    reg: Registry, reader: TensorReader, domain_id: int, tensors: dict[int, Brought]
) -> None:
    settings = reg.settings
    with PackSpool(reg, domain_id, reader) as spool:
        for each in tensors.values():
            if each.ref.tensor in spool:  # of two names for one tensor
                continue
            encode_tensor(
                spool,
                tensor_spec(each.ref.tensor, each.ref.dtype, each.ref.shape),
                each.read,
                max_frame_bytes=frame_limit(settings.pack_bytes),
                threads=settings.codec_threads,
                effort=settings.effort,
            )
        sealed = spool.seal()
    with reg.db.write() as session:
        make_live(session, sealed)
        for row, each in tensors.items():
            frames = sealed.tensors[each.ref.tensor].frames
            switch_tensor(session, row, frames, (), settings.max_depth)
    log.warning("domain %d: stored %d damaged tensors anew", domain_id, len(tensors))

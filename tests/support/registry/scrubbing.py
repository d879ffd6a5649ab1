"""Scrubs a registry, damages its objects, and gives its packs second copies."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from unittest.mock import patch

from sqlalchemy import select

from deltahub.registry import Registry
from deltahub.registry.db.models import Landing, Pack, Tensor, utc_now
from deltahub.registry.db.tables.scrub import FoundDamage, PackCopy, Proof
from deltahub.registry.maintenance.scrub.pace import Pace
from deltahub.registry.maintenance.scrub.run import Outcome, Scrub
from deltahub.registry.storage.keys import second_copy_key
from support.registry.small_hub import contents


def scrubbed(
    reg: Registry,
    *,
    before: datetime | None = None,
    is_repairing: bool = True,
    is_decoding: bool = False,
    limit_bytes: int | None = None,
) -> Outcome:
    """Scrub everything, or what was last checked before this time, as the command does."""
    work = Scrub(reg, Pace(), is_repairing=is_repairing, is_decoding=is_decoding)
    work.run(before or utc_now(), limit_bytes=limit_bytes)
    if is_repairing:
        work.make_copies()
    work.finish()
    return work.done


def findings(reg: Registry) -> dict[tuple[str, str], str]:
    """(kind, code) -> state of all findings."""
    with reg.db.read() as session:
        rows = session.scalars(select(FoundDamage)).all()
    return {(row.kind, row.code): row.state for row in rows}


def names(reg: Registry) -> set[str]:
    """The files that findings name."""
    with reg.db.read() as session:
        return {
            name for row in session.scalars(select(FoundDamage)) for name in row.affected["names"]
        }


def flip(reg: Registry, key: str, at: int = 0) -> None:
    """Change one bit of an object, `at` bytes from its middle."""
    data = bytearray(contents(reg, key))
    data[(len(data) // 2 + at) % len(data)] ^= 16
    reg.store.put(key, [bytes(data)])


def copies(reg: Registry) -> dict[str, str]:
    """Pack -> state of its second copy."""
    with reg.db.read() as session:
        return {row.pack_id: row.state for row in session.scalars(select(PackCopy))}


def copy_key_of(reg: Registry, pack_id: str) -> str:
    """The key of a pack's second copy."""
    with reg.db.read() as session:
        return second_copy_key(session.get_one(PackCopy, pack_id).id)


@contextmanager
def unreadable(*keys: str) -> Iterator[None]:
    """A context in which the disk fails to read these objects, as a bad sector does."""
    read = os.open

    def open_(path: Any, *args: Any, **options: Any) -> int:
        if isinstance(path, str) and path.endswith(keys):
            raise OSError(errno.EIO, "Input/output error")
        return read(path, *args, **options)

    with patch.object(os, "open", open_):
        yield


def pack_states(reg: Registry) -> set[str]:
    with reg.db.read() as session:
        return set(session.scalars(select(Pack.state)))


def n_lost(reg: Registry) -> int:
    with reg.db.read() as session:
        return len(session.scalars(select(Tensor.id).where(Tensor.lost.is_not(None))).all())


def uploads(reg: Registry) -> list[str]:
    with reg.db.read() as session:
        return list(session.scalars(select(Landing.id).where(Landing.state == "complete")))


def proofs(reg: Registry) -> dict[tuple[str, str], datetime]:
    with reg.db.read() as session:
        rows = session.scalars(select(Proof)).all()
    return {(row.kind, row.object_id): row.checked_at for row in rows}

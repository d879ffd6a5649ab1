"""Stored tensors by their content: their rows, and how many bytes the store holds for them."""

from collections.abc import Iterable

from sqlalchemy import select

from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Frame
from deltahub.registry.errors import TensorNotFound
from deltahub.registry.packs.locations import resolve_ids
from deltahub.registry.registry import Registry


def stored_tensors(reg: Registry, domain_id: int, contents: Iterable[bytes]) -> dict[bytes, int]:
    """Content id -> row, as the domain resolves it; TensorNotFound if one is not stored."""
    wanted = set(contents)
    with reg.db.read() as session:
        rows = resolve_ids(session, domain_id, wanted)
    missing = wanted - rows.keys()
    if missing:
        raise TensorNotFound(f"tensor {min(missing).hex()} is gone; run deltahub fsck")
    return rows


def stored_bytes(reg: Registry, rows: Iterable[int]) -> int:
    """The encoded bytes of these tensors, by their rows; each is counted once."""
    n_bytes = 0
    with reg.db.read() as session:
        for batch in batches(set(rows)):
            query = select(total(Frame.length)).where(Frame.tensor_id.in_(batch))
            n_bytes += session.scalar(query) or 0
    return n_bytes

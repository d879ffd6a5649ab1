"""How many bytes the store holds for some tensors."""

from collections.abc import Iterable

from sqlalchemy import func, select

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Frame
from deltahub.registry.packs.locations import resolve_ids
from deltahub.registry.registry import Registry


def stored_bytes(reg: Registry, domain_id: int, contents: Iterable[str]) -> int:
    """The encoded bytes of these tensors, as a domain resolves them.

    contents: content ids in hex.
    """
    n_bytes = 0
    with reg.db.read() as session:
        rows = resolve_ids(session, domain_id, [bytes.fromhex(each) for each in contents])
        for batch in batches(rows.values()):
            query = select(func.sum(Frame.length)).where(Frame.tensor_id.in_(batch))
            n_bytes += session.scalar(query) or 0
    return n_bytes

"""How long a chain of deltas may be, by the bytes that a reader of its end reads."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from deltahub.codecs.frames.base_choice import FREE_DEPTH
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Frame
from deltahub.registry.packs.locations import closure

# Bytes that are read for a byte of a tensor, without its own frames: a chain of deltas ends there.
# A run of small steps begins at an anchor, at less than 1, and climbs to this.
MAX_READ: Final = 1.75


def reads_too_much(depth: int, base_bytes: int, size: int) -> bool:
    """Whether a reader of a delta would read too many bytes of its bases.

    depth, size: of the tensor. base_bytes: see bytes_to_read.
    """
    return depth > FREE_DEPTH and base_bytes > MAX_READ * size


def bytes_to_read(session: Session, groups: Sequence[Collection[int]]) -> list[int]:
    """For each group of tensors, the bytes of all frames that decoding the group needs."""
    graph = closure(session, {tensor for group in groups for tensor in group})
    lengths: dict[int, int] = {}
    for batch in batches(graph):
        rows = session.execute(
            select(Frame.tensor_id, total(Frame.length))
            .where(Frame.tensor_id.in_(batch))
            .group_by(Frame.tensor_id)
        )
        lengths.update((tensor, length) for tensor, length in rows)
    return [sum(lengths.get(each, 0) for each in _needed(graph, group)) for group in groups]


def roots_of(session: Session, tensor_ids: Iterable[int]) -> dict[int, int]:
    """Tensor -> the tensor at the end of its chain of deltas, which has no base.

    Tensors are left out if one of their chain has several bases.
    """
    wanted = set(tensor_ids)
    graph = closure(session, wanted)
    found: dict[int, int] = {}
    for tensor in wanted:
        at, passed = tensor, 0
        while len(graph[at]) == 1 and passed < len(graph):  # damaged rows may form a cycle
            (at,) = graph[at]
            passed += 1
        if not graph[at]:
            found[tensor] = at
    return found


def _needed(graph: Mapping[int, Collection[int]], group: Collection[int]) -> set[int]:
    needed: set[int] = set()
    level = set(group)
    while level:
        needed |= level
        level = {base for tensor in level for base in graph[tensor]} - needed
    return needed

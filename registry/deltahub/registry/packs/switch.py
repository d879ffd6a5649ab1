"""Switches: transactions whose rows make readers use sealed frames.

Every function with a `session` argument is part of the caller's write transaction. It raises, and
so rolls back that transaction, if gc has condemned a pack in the meantime, if a base is gone, or if
the deltas would form a cycle or a chain deeper than allowed.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from sqlalchemy import CursorResult, delete, insert, select, update

from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import Frame, Pack, Tensor, TensorBase
from deltahub.registry.db.session import BASES_KEY, WriteSession, also_lock
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.errors import Conflict, DeltaCycle, TensorNotFound
from deltahub.registry.losses.marks import clear_marks
from deltahub.registry.packs.locations import FrameLocation, bases_of, resolve, usable_bases
from deltahub.registry.packs.reading.chain import MAX_CHAIN
from deltahub.registry.packs.writer import NewTensor, PackSpool, SealedPacks
from deltahub.registry.registry import Registry


class BaseGone(Conflict):
    """A base was deleted, was lost or became unreadable after its choice; choose again."""


def store_and_switch(
    reg: Registry,
    spool: PackSpool,
    switch: Callable[[WriteSession, SealedPacks], None],
    *,
    only_adds: bool = False,
    is_split: bool = False,
) -> None:
    """Seal the spool's packs, then make readers use them.

    First the packs are put, read back and verified. Only then a transaction makes them live and
    calls switch(session, sealed), which writes the rows. In this order a crash leaves garbage at
    most, never a row without its bytes.
    only_adds: switch() gives no stored tensor other bases, except by insert_tensors().
    is_split: use several transactions for very many tensors; see in_parts.
    """
    keys = () if only_adds else (BASES_KEY,)
    sealed = spool.seal()
    for number, part in enumerate(in_parts(sealed) if is_split else [sealed]):
        _switch_packs(reg, keys, part, check_live if number else make_live, switch)


@retried
def _switch_packs(
    reg: Registry,
    keys: Sequence[str],
    sealed: SealedPacks,
    check: Callable[[WriteSession, SealedPacks], None],
    switch: Callable[[WriteSession, SealedPacks], None],
) -> None:
    with reg.db.write_beside(*keys) as session:
        check(session, sealed)
        switch(session, sealed)


def make_live(session: WriteSession, sealed: SealedPacks) -> None:
    """Set the packs' state to live. Conflict if gc has collected one as garbage."""
    for pack_id in sealed.pack_ids:
        statement = (
            update(Pack).where(Pack.id == pack_id, Pack.state == "writing").values(state="live")
        )
        if cast(CursorResult[Any], session.execute(statement)).rowcount != 1:
            raise Conflict(f"pack {pack_id} was collected before it was used; repeat the step")


def check_live(session: WriteSession, sealed: SealedPacks) -> None:
    """Conflict unless these packs, which were made live before, are still live."""
    states = session.scalars(
        select(Pack.state).where(Pack.id.in_(sealed.pack_ids)).with_for_update()
    ).all()
    if states.count("live") != len(sealed.pack_ids):
        raise Conflict("a pack was collected while its tensors were made known; repeat the step")


def in_parts(sealed: SealedPacks) -> Iterator[SealedPacks]:
    """The same packs with a part of their tensors at a time; at least one part.

    One short transaction per part does not block other writers for long. The first transaction
    begins with make_live, the others with check_live. A crash between two leaves rows for the
    tensors of the first parts only.
    """
    for batch in batches(sealed.tensors.items(), PART_TENSORS):
        yield replace(sealed, tensors=dict(batch))
    if not sealed.tensors:
        yield sealed


def insert_tensors(
    session: WriteSession,
    sealed: SealedPacks,
    max_depth: int,
    *,
    is_foreign: bool = False,
    job_id: str | None = None,
) -> dict[bytes, int]:
    """Insert rows for the sealed tensors; content id -> row id. The packs must be live.

    job_id: the job that makes the tensors, some of them as bases of others.

    A tensor that another writer has stored in the meantime keeps its rows, unless it is marked as
    lost: then its row gets the new frames. BaseGone, DeltaCycle.
    """
    ids = _in_domain(session, sealed.domain_id, sealed.tensors)
    lost_contents = _lost_among(session, ids)
    if lost_contents:
        also_lock(session, BASES_KEY)
    restored = {ids[content]: sealed.tensors[content] for content in lost_contents}
    for row_id, lost in restored.items():
        _switch(session, row_id, lost.frames, lost.bases, max_depth, is_foreign=is_foreign)
    clear_marks(session, restored)
    new = [tensor for content, tensor in sealed.tensors.items() if content not in ids]
    bases = resolve(session, sealed.domain_id, {base for tensor in new for base in tensor.bases})
    # Shared, so that fine-tunes of one base do not wait for each other.
    lock(session, [base.id for base in bases.values()], is_shared=True)
    _check_usable(session, sealed.domain_id, (base.id for base in bases.values()), job_id)
    rows = []
    for tensor in new:
        depth = 1 + max((base.depth for base in _rows_of(tensor, bases)), default=-1)
        if depth > max_depth:
            raise DeltaCycle(
                f"tensor {tensor.hash.hex()} would be {depth} deltas deep; at most {max_depth}"
            )
        rows.append(
            {
                "domain_id": sealed.domain_id,
                "hash": tensor.hash,
                "size": tensor.size,
                "depth": depth,
                "is_foreign": is_foreign,
            }
        )
    for batch in batches(rows):
        session.execute(insert(Tensor), batch)
    ids.update(_in_domain(session, sealed.domain_id, [tensor.hash for tensor in new]))
    _insert_frames(session, {ids[tensor.hash]: tensor.frames for tensor in new})
    _insert_bases(
        session, {ids[tensor.hash]: [b.id for b in _rows_of(tensor, bases)] for tensor in new}
    )
    return ids


def switch_tensor(
    session: WriteSession,
    tensor_id: int,
    frames: Iterable[FrameLocation],
    bases: Collection[bytes],
    max_depth: int,
    *,
    is_foreign: bool = False,
) -> None:
    """Replace the frames of a stored tensor by frames that are deltas of `bases` (content ids).

    The frames must be in live packs and cover the tensor. Locks the tensor and its bases. Takes the
    mark from a lost tensor. DeltaCycle if a base depends on the tensor, or if the tensor or a
    dependent of it would be deeper than max_depth; BaseGone, also for a new base that readers of
    the tensor may not read; TensorNotFound.
    """
    if _switch(session, tensor_id, frames, bases, max_depth, is_foreign=is_foreign):
        clear_marks(session, [tensor_id])


def switch_damaged(
    session: WriteSession, tensors: Mapping[int, Sequence[FrameLocation]], max_depth: int
) -> None:
    """switch_tensor for many tensors, row id -> frames without bases; marks are taken at once."""
    clear_marks(
        session,
        [row_id for row_id, new in tensors.items() if _switch(session, row_id, new, (), max_depth)],
    )


def _switch(
    session: WriteSession,
    tensor_id: int,
    frames: Iterable[FrameLocation],
    bases: Collection[bytes],
    max_depth: int,
    *,
    is_foreign: bool = False,
) -> bool:
    """As switch_tensor, but whether the tensor was lost is returned, and its mark stays."""
    tensor = session.get(Tensor, tensor_id, with_for_update=True)
    if tensor is None:
        raise TensorNotFound(f"tensor {tensor_id} has been deleted")
    found = resolve(session, tensor.domain_id, bases)
    if len(found) != len(set(bases)) or any(base.lost for base in found.values()):
        raise BaseGone(f"a base of tensor {tensor.hash.hex()} has been deleted, or is lost")
    base_ids = {base.id for base in found.values()}
    lock(session, [tensor_id, *base_ids])
    known = bases_of(session, [tensor_id]).get(tensor_id, set())
    _check_usable(session, tensor.domain_id, base_ids - known)
    depth = _depth_above(session, tensor_id, base_ids)
    session.execute(delete(TensorBase).where(TensorBase.tensor_id == tensor_id))
    _insert_bases(session, {tensor_id: base_ids})
    _set_depths(session, tensor, depth, max_depth)
    session.execute(delete(Frame).where(Frame.tensor_id == tensor_id))
    _insert_frames(session, {tensor_id: frames})
    tensor.is_foreign = is_foreign
    return tensor.lost is not None


def lock(session: WriteSession, tensor_ids: Iterable[int], *, is_shared: bool = False) -> None:
    """Lock these rows until the transaction ends, and refresh them.

    is_shared: other transactions may lock them in the same way, and none changes them.
    The order of ids prevents deadlocks. On SQLite a write transaction locks the whole database.
    """
    for batch in batches(sorted(set(tensor_ids))):
        session.scalars(
            select(Tensor)
            .where(Tensor.id.in_(batch))
            .order_by(Tensor.id)
            .with_for_update(read=is_shared)
            .execution_options(populate_existing=True)
        ).all()


def _check_usable(
    session: WriteSession, domain_id: int, base_ids: Iterable[int], job_id: str | None = None
) -> None:
    wanted = set(base_ids)
    if wanted - usable_bases(session, domain_id, wanted, job_id):
        raise BaseGone("a base may no longer be read by everybody who may read its delta")


def _depth_above(session: WriteSession, tensor_id: int, base_ids: set[int]) -> int:
    """The depth of a tensor with these bases; DeltaCycle if one of them depends on it."""
    depth, level = 0, base_ids
    while level:
        if tensor_id in level or depth > MAX_CHAIN:
            raise DeltaCycle(f"tensor {tensor_id} would be needed for decoding itself")
        depth += 1
        level = {base for bases in bases_of(session, level).values() for base in bases}
    return depth


def _set_depths(session: WriteSession, tensor: Tensor, depth: int, max_depth: int) -> None:
    """Write the depth of the tensor and of all its dependents, level by level."""
    changed: Mapping[int, int] = {tensor.id: depth}
    while changed:
        if max(changed.values()) > max_depth:
            raise DeltaCycle(
                f"tensor {tensor.hash.hex()} at depth {depth} would make a chain of"
                f" {max(changed.values())}; at most {max_depth} are allowed"
            )
        for tensor_id, value in changed.items():
            session.execute(update(Tensor).where(Tensor.id == tensor_id).values(depth=value))
        changed = _outdated_dependents(session, changed)


def _outdated_dependents(session: WriteSession, changed: Mapping[int, int]) -> dict[int, int]:
    """Direct dependents of the changed tensors whose stored depth is wrong -> right depth."""
    dependents: set[int] = set()
    for batch in batches(changed):
        dependents.update(
            session.scalars(select(TensorBase.tensor_id).where(TensorBase.base_id.in_(batch)))
        )
    edges = bases_of(session, dependents)
    depths: dict[int, int] = {}
    for batch in batches(dependents | {base for bases in edges.values() for base in bases}):
        rows = session.execute(select(Tensor.id, Tensor.depth).where(Tensor.id.in_(batch)))
        depths.update((tensor_id, depth) for tensor_id, depth in rows)
    right = {tensor: 1 + max(depths[base] for base in edges[tensor]) for tensor in dependents}
    return {tensor: depth for tensor, depth in right.items() if depths[tensor] != depth}


def _rows_of(tensor: NewTensor, bases: Mapping[bytes, Tensor]) -> list[Tensor]:
    if any(base not in bases or bases[base].lost for base in tensor.bases):
        raise BaseGone(f"a base of tensor {tensor.hash.hex()} has been deleted, or is lost")
    return [bases[base] for base in tensor.bases]


def _lost_among(session: WriteSession, ids: Mapping[bytes, int]) -> list[bytes]:
    """The content ids of the rows that are marked as lost."""
    found: list[bytes] = []
    for batch in batches(ids.values()):
        found += session.scalars(
            select(Tensor.hash).where(Tensor.id.in_(batch), Tensor.lost.is_not(None))
        )
    return found


def _in_domain(session: WriteSession, domain_id: int, hashes: Iterable[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for batch in batches(hashes):
        rows = session.execute(
            select(Tensor.hash, Tensor.id).where(
                Tensor.domain_id == domain_id, Tensor.hash.in_(batch)
            )
        )
        found.update((content, tensor_id) for content, tensor_id in rows)
    return found


def _insert_frames(session: WriteSession, frames: Mapping[int, Iterable[FrameLocation]]) -> None:
    rows = (
        {
            "tensor_id": tensor_id,
            "start": frame.start,
            "size": frame.size,
            "pack_id": frame.pack_id,
            "offset": frame.offset,
            "length": frame.length,
            "codec": frame.codec,
            "tried": frame.tried,
        }
        for tensor_id, located in frames.items()
        for frame in located
    )
    for batch in batches(rows):
        session.execute(insert(Frame), batch)


def _insert_bases(session: WriteSession, bases: Mapping[int, Collection[int]]) -> None:
    rows = (
        {"tensor_id": tensor_id, "base_id": base_id}
        for tensor_id, base_ids in bases.items()
        for base_id in set(base_ids)
    )
    for batch in batches(rows):
        session.execute(insert(TensorBase), batch)

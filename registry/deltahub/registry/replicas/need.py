"""Which packs many files depend on, so that a second copy is worth its bytes.

A file depends on a pack if one of its tensors is stored as a delta of a tensor in the pack. The
files that hold the pack's own tensors do not count, and neither do deltas of these deltas.
"""

from typing import Final

from sqlalchemy import Select, func, select

from deltahub.registry.db.models import FileTensor, Frame, Pack, TensorBase
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.scrub import PackCopy

# A copy stays until fewer than this share of the dependents is left that it was made for, so that
# a pack at the limit does not get and lose a copy again and again.
KEPT_SHARE: Final = 0.5


def packs_to_copy(session: ReadSession, dependents: int) -> list[str]:
    """Live packs without a second copy that at least so many files depend on, the most needed
    first. dependents: 0 for none.
    """
    if dependents <= 0:
        return []
    n_files = func.count(FileTensor.file_id.distinct())
    has_copy = select(PackCopy.pack_id).where(PackCopy.state != "writing")
    rows = session.execute(
        _dependents()
        .join(Pack, Pack.id == Frame.pack_id)
        .where(Pack.state == "live", Pack.id.not_in(has_copy))
        .having(n_files >= dependents)
        .order_by(n_files.desc(), Frame.pack_id)
    )
    return [pack_id for pack_id, _ in rows]


def unneeded_copies(session: ReadSession, dependents: int) -> list[tuple[str, int]]:
    """(pack, bytes) of finished second copies whose live pack too few files depend on now."""
    rows = session.execute(
        select(PackCopy.pack_id, PackCopy.size)
        .join(Pack, Pack.id == PackCopy.pack_id)
        .where(PackCopy.state == "live", Pack.state == "live")
    ).all()
    return [(pack, size) for pack, size in rows if not still_needed(session, pack, dependents)]


def still_needed(session: ReadSession, pack_id: str, dependents: int) -> bool:
    """Whether the second copy of a pack should stay. That of a damaged pack should."""
    pack = session.get(Pack, pack_id)
    if pack is not None and pack.state == "damaged":
        return True
    if dependents <= 0:
        return False
    found = session.execute(_dependents().where(Frame.pack_id == pack_id)).one_or_none()
    return found is not None and found[1] >= KEPT_SHARE * dependents


def _dependents() -> Select[str, int]:
    """(pack, number of files that depend on it) of packs on which a file depends."""
    return (
        select(Frame.pack_id, func.count(FileTensor.file_id.distinct()))
        .join(TensorBase, TensorBase.base_id == Frame.tensor_id)
        .join(FileTensor, FileTensor.tensor_id == TensorBase.tensor_id)
        .group_by(Frame.pack_id)
    )

"""Takes rows that are needed from the suspects, so that the next plan does not look at them."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from sqlalchemy import delete, exists, func, insert, select

from deltahub.codecs.frames.pack import live_pack_bytes
from deltahub.registry import cancellation
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, FileTensor, Frame, Pack, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.suspects import Suspect
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.registry import Registry

# Suspects of one transaction.
_PAGE: Final = 500


def suspect_everything(reg: Registry) -> None:
    """Make the next plan look at all rows, whatever was proved before."""
    with reg.db.write() as session:
        session.execute(delete(Suspect))
        for column, row_id in (
            ("file_id", File.id),
            ("tensor_id", Tensor.id),
            ("pack_id", Pack.id),
        ):
            session.execute(insert(Suspect).from_select([column], select(row_id)))


def settle(reg: Registry) -> int:
    """Delete the suspects that are proved to be needed, or are gone; how many.

    Page by page: what a killed run has proved stays proved. What loses a reference meanwhile is
    noted again, in a row that this page does not have.
    """
    last = n_settled = 0
    while True:
        cancellation.check()
        with reg.db.read() as session:
            query = select(Suspect.id, Suspect.file_id, Suspect.tensor_id, Suspect.pack_id)
            rows = session.execute(
                query.where(Suspect.id > last).order_by(Suspect.id).limit(_PAGE)
            ).all()
            if not rows:
                return n_settled
            kept: set[int] = set()
            for place, still_suspect in enumerate(_STILL, 1):
                first: dict[Any, int] = {row[place]: row[0] for row in reversed(rows)}
                first.pop(None, None)
                kept.update(first[key] for key in still_suspect(session, first))
        settled = [row[0] for row in rows if row[0] not in kept]
        with reg.db.write() as session:
            session.execute(delete(Suspect).where(Suspect.id.in_(settled)))
        n_settled += len(settled)
        last = rows[-1][0]


def _unlisted(session: ReadSession, files: Collection[int]) -> Sequence[int]:
    is_listed = exists(select(Entry.file_id).where(Entry.file_id == File.id))
    return session.scalars(select(File.id).where(File.id.in_(files), ~is_listed)).all()


def _unneeded(session: ReadSession, tensors: Collection[int]) -> Sequence[int]:
    is_in_file = exists(select(FileTensor.file_id).where(FileTensor.tensor_id == Tensor.id))
    is_recipe = exists(select(File.id).where(File.recipe_tensor_id == Tensor.id))
    query = select(Tensor.id).where(Tensor.id.in_(tensors), ~is_in_file, ~is_recipe)
    return session.scalars(query).all()


def _not_whole(session: ReadSession, packs: Collection[str]) -> Sequence[str]:
    """Those that are not live, or have dead bytes."""
    rows = session.execute(
        select(Pack.id, Pack.state, Pack.size, func.count(Frame.pack_id), total(Frame.length))
        .outerjoin(Frame, Frame.pack_id == Pack.id)
        .where(Pack.id.in_(packs))
        .group_by(Pack.id, Pack.state, Pack.size)
    )
    return [
        pack
        for pack, state, size, count, n_bytes in rows
        if state != "live" or live_pack_bytes(count, n_bytes) < size
    ]


_STILL: Final[tuple[Callable[[ReadSession, Collection[Any]], Sequence[Any]], ...]] = (
    _unlisted,
    _unneeded,
    _not_whole,
)

"""Garbage that may not go yet: what waits for its grace, its expiry or its lease, and until when.

It is found by asking what will be garbage in the far future if nobody refers to it meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, Frame, Hold, Landing, Pack, Tensor, Xorb
from deltahub.registry.maintenance.gc.conditions import (
    Moment,
    file_is_dead,
    find_unneeded_tensors,
    landing_is_dead,
    pack_is_abandoned,
    pack_is_past_lease,
)
from deltahub.registry.maintenance.gc.xet import xorb_is_dead

# Later than any grace, lease or expiry.
_FAR = timedelta(days=36_500)


@dataclass(frozen=True)
class Waiting:
    """Things of one kind that a later collection takes, unless something refers to them by then.

    size_bytes: what they weigh in the store. until: when the last of them is due, ISO 8601.
    """

    what: str
    count: int
    size_bytes: int
    until: str


def find_waiting(
    session: Session, moment: Moment, upload_bytes: Callable[[str], int]
) -> Iterator[Waiting]:
    """What waits at this moment, by kind. Memory: proportional to the garbage, not to the hub."""
    far = replace(moment, now=moment.now + _FAR)
    is_dead_later = file_is_dead(far) & ~file_is_dead(moment)
    files = list(session.scalars(select(File.id).where(is_dead_later)))
    due = _latest(
        session,
        (func.coalesce(File.ingested_at, File.created_at), File.id, files, moment.grace),
        (Hold.expires_at, Hold.tensor_id, _recipes(session, files), timedelta(0)),
    )
    if files:
        yield Waiting("files that no revision lists", len(files), 0, _text(due, moment))

    expires_later = landing_is_dead(far) & ~landing_is_dead(moment)
    uploads = list(session.scalars(select(Landing.id).where(expires_later)))
    expiry = _latest(session, (Landing.expires_at, Landing.id, uploads, timedelta(0)))
    if uploads:
        size = sum(map(upload_bytes, uploads))
        until = _text([*expiry, *due], moment)
        yield Waiting("uploads that no revision needs", len(uploads), size, until)

    query = select(func.count(), total(Xorb.size), func.max(Xorb.expires_at))
    query = query.where(xorb_is_dead(far) & ~xorb_is_dead(moment))
    count, size, last = session.execute(query).one()
    if last is not None:
        yield Waiting("xorbs of uploads", count, size, _text([last], moment))

    unneeded, _ = find_unneeded_tensors(session, moment)
    unneeded_later, _ = find_unneeded_tensors(session, far)
    tensors = sorted(set(unneeded_later).difference(unneeded))
    release = _latest(
        session,
        (Tensor.created_at, Tensor.id, tensors, moment.grace),
        (Hold.expires_at, Hold.tensor_id, tensors, timedelta(0)),
    )
    if tensors:
        size = _frame_bytes(session, tensors)
        until = _text([*release, *due], moment)
        yield Waiting("tensors that nothing needs", len(tensors), size, until)

    yield from _waiting_packs(session, moment, far)


def in_one(what: str, items: Sequence[tuple[int, datetime]]) -> list[Waiting]:
    """Things given as (bytes, due when) in one, or in none where there are none."""
    if not items:
        return []
    until = max(due for _, due in items).isoformat(timespec="seconds")
    return [Waiting(what, len(items), sum(size for size, _ in items), until)]


def _waiting_packs(session: Session, moment: Moment, far: Moment) -> Iterator[Waiting]:
    condemned = pack_is_past_lease(far) & ~pack_is_past_lease(moment)
    unfinished = pack_is_abandoned(far) & ~pack_is_abandoned(moment)
    for what, since, condition in (
        ("condemned packs", Pack.condemned_at, condemned),
        ("packs not finished yet", Pack.created_at, unfinished),
    ):
        query = select(func.count(), total(Pack.size), func.max(since)).where(condition)
        count, size, last = session.execute(query).one()
        if last is not None:
            yield Waiting(what, count, size, _text([last + moment.lease], moment))


def _recipes(session: Session, files: Iterable[int]) -> list[int]:
    return [
        recipe
        for batch in batches(files)
        for recipe in session.scalars(select(File.recipe_tensor_id).where(File.id.in_(batch)))
        if recipe is not None
    ]


def _frame_bytes(session: Session, tensors: Iterable[int]) -> int:
    return sum(
        session.scalars(select(total(Frame.length)).where(Frame.tensor_id.in_(batch))).one()
        for batch in batches(tensors)
    )


def _latest(
    session: Session, *columns: tuple[Any, Any, Iterable[int | str], timedelta]
) -> list[datetime]:
    """Moments of which the last counts: max(column) of the rows with these ids, and a pause."""
    found = []
    for column, key, ids, pause in columns:
        for batch in batches(ids):
            query: Select[datetime | None] = select(func.max(column)).where(key.in_(batch))
            moment = session.scalar(query)
            if moment is not None:
                found.append(moment + pause)
    return found


def _text(moments: Iterable[datetime], moment: Moment) -> str:
    """The last of them; what a hold or a file that is due already kept goes with the next run."""
    return max([moment.now, *moments]).isoformat(timespec="seconds")

"""Which objects a scrub reads next: those whose last check is longest ago."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import shuffle
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, exists, func, literal, or_, select

from deltahub.registry.db.columns import UtcDateTime
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Landing, Pack, Xorb, utc_now
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.scrub import PackCopy, Proof
from deltahub.registry.losses.marks import is_needed_pack
from deltahub.registry.storage.keys import landing_key, pack_key, xorb_key

# A pack with a second copy, and the copy, are read as if their last check were so much longer ago,
# because many files depend on them.
AHEAD: Final = timedelta(days=7)
# A check that is further in the future was dated by a clock that was ahead, and does not count.
_CLOCK_SLACK: Final = timedelta(minutes=5)
KINDS: Final = ("pack", "copy", "landing", "xorb")
# Of kinds whose rows have the id of their objects.
_KEY_OF: Final = {"pack": pack_key, "landing": landing_key, "xorb": xorb_key}


@dataclass(frozen=True)
class Due:
    """An object to read. kind: one of KINDS; checked_at: its last check, or when it was made."""

    kind: str
    id: str
    size: int
    checked_at: datetime
    is_needed_by_many: bool


def oldest(
    session: ReadSession, before: datetime, limit: int, skipped: Collection[tuple[str, str]] = ()
) -> list[Due]:
    """Up to `limit` objects last checked before this time, in the order in which to read them.

    skipped: (kind, id) of objects to leave out.
    """
    found: list[Due] = []
    for kind, rows in _queries(before):
        page = session.execute(rows.limit(limit + len(skipped)))
        found += [Due(kind, *row) for row in page if (kind, row[0]) not in skipped]
    found.sort(key=lambda due: due.checked_at - (AHEAD if due.is_needed_by_many else timedelta()))
    return found[:limit]


def sample(
    session: ReadSession, limit: int, skipped: Collection[tuple[str, str]] = ()
) -> list[str]:
    """The keys of up to `limit` objects that the store should have, at random.

    skipped: as for oldest().
    """
    keys = []
    for kind, rows in _queries(None):
        key_of = _KEY_OF.get(kind)
        if key_of is not None:
            page = session.execute(
                rows.order_by(None).order_by(func.random()).limit(limit + len(skipped))
            )
            keys += [key_of(row[0]) for row in page if row[1] and (kind, row[0]) not in skipped]
    shuffle(keys)
    return keys[:limit]


def count(session: ReadSession, before: datetime | None = None) -> tuple[int, int]:
    """(objects, bytes) of all objects, or of those last checked before this time."""
    n_objects = n_bytes = 0
    for _, rows in _queries(before):
        part = rows.order_by(None).subquery()
        found = session.execute(select(func.count(), total(part.c.size)).select_from(part)).one()
        n_objects, n_bytes = n_objects + found[0], n_bytes + found[1]
    return n_objects, n_bytes


def _queries(before: datetime | None) -> list[tuple[str, Select[Any]]]:
    """For each kind the rows (id, size, last check, whether many need it), oldest check first."""
    has_copy = exists(
        select(PackCopy.pack_id).where(PackCopy.pack_id == Pack.id, PackCopy.state == "live")
    )
    is_in_use = is_needed_pack()
    # One that was marked as damaged may be right, or right again.
    is_whole = Landing.state.in_(("complete", "damaged"))
    packs = (Pack.id, Pack.size, Pack.created_at)
    copies = (PackCopy.pack_id, PackCopy.size, PackCopy.created_at)
    landings = (Landing.id, Landing.size, Landing.created_at)
    xorbs = (Xorb.id, Xorb.size, Xorb.created_at)
    return [
        ("pack", _rows("pack", packs, is_in_use & ~has_copy, before, is_needed_by_many=False)),
        ("pack", _rows("pack", packs, is_in_use & has_copy, before, is_needed_by_many=True)),
        ("copy", _rows("copy", copies, PackCopy.state == "live", before, is_needed_by_many=True)),
        ("landing", _rows("landing", landings, is_whole, before, is_needed_by_many=False)),
        ("xorb", _rows("xorb", xorbs, Xorb.state == "live", before, is_needed_by_many=False)),
    ]


def _rows(
    kind: str,
    columns: tuple[Any, Any, Any],
    condition: ColumnElement[bool],
    before: datetime | None,
    *,
    is_needed_by_many: bool,
) -> Select[Any]:
    object_id, size, created_at = columns
    checked_at = func.coalesce(Proof.checked_at, created_at, type_=UtcDateTime())
    rows = (
        select(
            object_id.label("id"),
            size.label("size"),
            checked_at.label("checked_at"),
            literal(is_needed_by_many).label("is_needed_by_many"),
        )
        .outerjoin(Proof, and_(Proof.kind == kind, Proof.object_id == object_id))
        .where(condition)
        .order_by(checked_at, object_id)
    )
    if before is None:
        return rows
    return rows.where(or_(checked_at < before, checked_at > utc_now() + _CLOCK_SLACK))

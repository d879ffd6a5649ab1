"""The audit log, filtered."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, select

from deltahub.registry.db.expressions import contains
from deltahub.registry.db.models import AuditEvent
from deltahub.registry.db.paging.keyset import Asked, Page, order_of
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.registry import Registry

# Events that one page looks at: a filter that finds little ends there, and the next page goes on.
_WINDOW: Final = 100_000


@dataclass(frozen=True)
class EventRow:
    """user: None for the operator's shell."""

    id: int
    at: datetime
    user: str | None
    action: str
    target: str
    detail: dict[str, Any] | None


@dataclass(frozen=True)
class EventFilter:
    """user, action, target: what they contain; empty: any. since, until: None for no bound."""

    user: str = ""
    action: str = ""
    target: str = ""
    since: datetime | None = None
    until: datetime | None = None


def list_events(reg: Registry, asked: Asked, wanted: EventFilter) -> Page[EventRow]:
    """The newest events first, or with sort `at` the oldest.

    A page may have fewer rows than asked for, or none, and yet a cursor: it has looked at _WINDOW
    events, and the next page looks at those beyond.
    """
    _, is_turned = order_of(asked.sort, {"at": None})
    is_newest_first = asked.sort is None or is_turned
    with reg.db.read() as session:
        first, last = session.execute(
            select(func.min(AuditEvent.id), func.max(AuditEvent.id))
        ).one()
        if last is None:
            return Page([])
        lowest, highest = first, last
        if wanted.since is not None:
            since = select(func.min(AuditEvent.id)).where(AuditEvent.at >= wanted.since)
            lowest = session.scalar(since) or last + 1
        if wanted.until is not None:
            until = select(func.max(AuditEvent.id)).where(AuditEvent.at < wanted.until)
            highest = session.scalar(until) or first - 1
        start = _cursor(asked.after)
        if is_newest_first:
            highest = highest if start is None else min(highest, start - 1)
            window = (max(lowest, highest - _WINDOW + 1), highest)
        else:
            lowest = lowest if start is None else max(lowest, start + 1)
            window = (lowest, min(highest, lowest + _WINDOW - 1))
        query = select(AuditEvent).where(AuditEvent.id.between(*window))
        for column, part in (
            (AuditEvent.user_name, wanted.user),
            (AuditEvent.action, wanted.action),
            (AuditEvent.target, wanted.target),
        ):
            if part:
                query = query.where(contains(func.lower(column), part.lower()))
        order = AuditEvent.id.desc() if is_newest_first else AuditEvent.id
        limit = max(asked.limit, 1)
        found = list(session.scalars(query.order_by(order).limit(limit + 1)))
        rows = [
            EventRow(e.id, e.at, e.user_name, e.action, e.target, e.detail) for e in found[:limit]
        ]
    if len(found) > limit:
        return Page(rows, str(rows[-1].id))
    end = window[0] if is_newest_first else window[1]
    is_over = window[0] <= lowest if is_newest_first else window[1] >= highest
    return Page(rows, None if is_over else str(end))


def _cursor(after: str | None) -> int | None:
    if after is None:
        return None
    if not after.isdecimal() or len(after) > 18:
        raise InvalidRequest("this page does not go on from there: begin with the first page again")
    return int(after)

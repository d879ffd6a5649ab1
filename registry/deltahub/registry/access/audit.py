"""The append-only audit log: which user did which action on which target."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from deltahub.registry.access.caller import Caller
from deltahub.registry.db.models import AuditEvent
from deltahub.registry.db.session import ReadSession, WriteSession


def append(
    session: WriteSession,
    caller: Caller | None,
    action: str,
    target: str,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Log an action in its own transaction. caller None: the operator's shell."""
    session.add(
        AuditEvent(
            user_name=None if caller is None else caller.name,
            action=action,
            target=target,
            detail=None if detail is None else dict(detail),
        )
    )


def latest(
    session: ReadSession, limit: int = 100, before_id: int | None = None
) -> list[AuditEvent]:
    """The newest events first. before_id: only events older than this id, for the next page."""
    query = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit)
    if before_id is not None:
        query = query.where(AuditEvent.id < before_id)
    return list(session.scalars(query))

"""Holds: a tensor that somebody was told the hub has stays until they could have committed it."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, select, update

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Hold, utc_now
from deltahub.registry.db.session import WriteSession


def hold_for_job(session: WriteSession, tensor_ids: Iterable[int], job_id: str, ttl_s: int) -> None:
    """Keep these tensors while the job runs, and for ttl_s at least."""
    _hold(session, tensor_ids, Hold.job_id == job_id, {"job_id": job_id}, ttl_s)


def hold_for_user(
    session: WriteSession,
    tensor_ids: Iterable[int],
    user_id: int,
    repository_id: int,
    ttl_s: int,
) -> None:
    """Keep these tensors for ttl_s more, as acknowledged to the user for this repository."""
    mine = (Hold.user_id == user_id) & (Hold.repository_id == repository_id)
    values = {"user_id": user_id, "repository_id": repository_id}
    _hold(session, tensor_ids, mine, values, ttl_s)


def release_job(session: WriteSession, job_id: str) -> None:
    """The job is over: its files refer to the tensors, or nothing does."""
    session.execute(delete(Hold).where(Hold.job_id == job_id))


def _hold(
    session: WriteSession,
    tensor_ids: Iterable[int],
    mine: ColumnElement[bool],
    values: dict[str, Any],
    ttl_s: int,
) -> None:
    expires_at = utc_now() + timedelta(seconds=ttl_s)
    for batch in batches(dict.fromkeys(tensor_ids)):
        condition = Hold.tensor_id.in_(batch) & mine
        held = set(session.scalars(select(Hold.tensor_id).where(condition)))
        if held:
            session.execute(update(Hold).where(condition).values(expires_at=expires_at))
        new = [
            {"tensor_id": tensor_id, "expires_at": expires_at, **values}
            for tensor_id in batch
            if tensor_id not in held
        ]
        if new:
            session.execute(insert(Hold), new)

"""Holds: a client that was told that the hub has a tensor gets time to commit it.

A held tensor is not deleted before the hold expires.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, select, update

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Hold, utc_now
from deltahub.registry.db.session import WriteSession


def hold_for_job(session: WriteSession, tensor_ids: Iterable[int], job_id: str, ttl_s: int) -> None:
    """Hold these tensors until the job is over, and for at least ttl_s seconds."""
    _hold(session, tensor_ids, Hold.job_id == job_id, {"job_id": job_id}, ttl_s)


def hold_for_user(
    session: WriteSession,
    tensor_ids: Iterable[int],
    user_id: int,
    repository_id: int,
    ttl_s: int,
) -> None:
    """Hold these tensors for ttl_s seconds from now, for this user and repository."""
    is_own = (Hold.user_id == user_id) & (Hold.repository_id == repository_id)
    values = {"user_id": user_id, "repository_id": repository_id}
    _hold(session, tensor_ids, is_own, values, ttl_s)


def release_job(session: WriteSession, job_id: str) -> None:
    """End the holds of a job that is over: its files refer to the tensors now, or nothing does."""
    session.execute(delete(Hold).where(Hold.job_id == job_id))


def _hold(
    session: WriteSession,
    tensor_ids: Iterable[int],
    is_own: ColumnElement[bool],
    values: dict[str, Any],
    ttl_s: int,
) -> None:
    expires_at = utc_now() + timedelta(seconds=ttl_s)
    for batch in batches(dict.fromkeys(tensor_ids)):
        condition = Hold.tensor_id.in_(batch) & is_own
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

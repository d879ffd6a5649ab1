"""Background work, and what it says while it runs."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, Id, UtcDateTime, partial_index, utc_now


class Job(Base):
    """Background work. The transaction that needs the work also writes the row."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_newest", "created_at", "id"),
        partial_index("ix_jobs_withdraw", "repository_id", "kind = 'withdraw'"),
        Index("ix_jobs_newest_of_user", "user_id", "created_at", "id"),
        Index("ix_jobs_turns", "user_id", "turn_at"),
        Index("ix_jobs_key", "user_id", "idempotency_key", unique=True),
        partial_index("ix_jobs_worker", "worker_id", "worker_id IS NOT NULL"),
    )
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex
    kind: Mapped[str] = mapped_column(String(40))
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(12), index=True)
    progress: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    error_code: Mapped[str | None] = mapped_column(String(60))
    error: Mapped[str | None] = mapped_column(Text)
    is_cancel_asked: Mapped[bool] = mapped_column(default=False)
    repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="SET NULL"), index=True
    )
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # of the current attempt
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The order of jobs (jobs/order.py): an estimate of the bytes to read, when the job is due among
    # those of its user, and when it last got a turn.
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    lane: Mapped[str] = mapped_column(String(12), default="store", server_default="store")
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    turn_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Attempts that ended with an error that passes by itself, the first of these errors, and when
    # the job may run again.
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")
    failing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    retry_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The worker that runs the job, or keeps its thread while the job makes room for another one;
    # and how many workers died while they ran this attempt.
    worker_id: Mapped[str | None] = mapped_column(String(32))
    n_deaths: Mapped[int] = mapped_column(default=0, server_default="0")
    idempotency_key: Mapped[str | None] = mapped_column(
        String(64)
    )  # of a job that a user asked for


class JobLine(Base):
    """A line of a job's log."""

    __tablename__ = "job_lines"
    __table_args__ = (Index("ix_job_lines_of_job", "job_id", "id"),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    job_id: Mapped[str] = mapped_column(String(32), ForeignKey("jobs.id", ondelete="CASCADE"))
    at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    text: Mapped[str] = mapped_column(Text)

"""What namespaces may use, what repositories use, and what the hub held over time."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, UtcDateTime


class Quota(Base):
    """Limits of a namespace, in place of the hub's defaults. None: no limit."""

    __tablename__ = "quotas"
    namespace_id: Mapped[int] = mapped_column(
        ForeignKey("namespaces.id", ondelete="CASCADE"), primary_key=True
    )
    stored_bytes: Mapped[int | None] = mapped_column(BigInteger)
    logical_bytes: Mapped[int | None] = mapped_column(BigInteger)
    repositories: Mapped[int | None] = mapped_column()


class RepositoryUsage(Base):
    """What a repository uses, as last measured: see quotas/usage.py."""

    __tablename__ = "repository_usage"
    repository_id: Mapped[int] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), primary_key=True
    )
    stored_bytes: Mapped[int] = mapped_column(BigInteger)
    logical_bytes: Mapped[int] = mapped_column(BigInteger)


class HubHistory(Base):
    """The hub as it was once in an hour; of old times, once in a day. See reports/history.py."""

    __tablename__ = "hub_history"
    at: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)  # the beginning of the hour
    n_repositories: Mapped[int] = mapped_column(BigInteger)
    n_files: Mapped[int] = mapped_column(BigInteger)
    logical_bytes: Mapped[int] = mapped_column(BigInteger)
    # Kind of object -> bytes in the store.
    stored_bytes: Mapped[dict[str, int]] = mapped_column(JSON)
    # Since the row before.
    jobs_done: Mapped[int] = mapped_column(BigInteger)
    jobs_failed: Mapped[int] = mapped_column(BigInteger)
    sent_bytes: Mapped[int] = mapped_column(BigInteger)
    received_bytes: Mapped[int] = mapped_column(BigInteger)
    requests: Mapped[int] = mapped_column(BigInteger)

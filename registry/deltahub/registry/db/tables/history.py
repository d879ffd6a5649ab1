"""What the hub held over time, for the charts of administrators."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, UtcDateTime


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

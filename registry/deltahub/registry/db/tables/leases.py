"""Which processes of a hub live now, where its database is shared by several machines."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, UtcDateTime


class Lease(Base):
    """A lock of the hub that a process holds as long as it renews the row: see leases/lease.py.

    All times are by the clock of the database, so that the clocks of machines need not agree.
    """

    __tablename__ = "leases"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex
    name: Mapped[str] = mapped_column(String(40), index=True)  # of data_folder.py: worker.lock
    # Processes that share a lock hold it together; any other process has it to itself.
    is_shared: Mapped[bool] = mapped_column()
    command: Mapped[str] = mapped_column(String(80))
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int] = mapped_column(BigInteger)
    # What the process says of itself, for people.
    about: Mapped[dict[str, Any]] = mapped_column(JSON)
    begun_at: Mapped[datetime] = mapped_column(UtcDateTime)
    renewed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # When a worker last looked for jobs; None of other processes, and until its first look.
    looked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

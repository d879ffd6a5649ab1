"""What namespaces may use, and what repositories use."""

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base


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

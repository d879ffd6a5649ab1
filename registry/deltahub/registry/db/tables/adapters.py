"""What was found out about adapters, and what is done with those that changed their base."""

from typing import Any

from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, Id


class AdapterReportRow(Base):
    """The report on the adapter of a revision (registry/adapters/reports.py)."""

    __tablename__ = "adapter_reports"
    revision_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    state: Mapped[str] = mapped_column(String(16))  # plain|convertible|quarantined|broken
    report: Mapped[dict[str, Any]] = mapped_column(JSON)


class ConversionRule(Base):
    """Whether adapters are converted by themselves, of one repository or of a namespace.

    Exactly one of namespace_id and repository_id is set.
    """

    __tablename__ = "conversion_rules"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[int | None] = mapped_column(
        ForeignKey("namespaces.id", ondelete="CASCADE"), unique=True
    )
    repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), unique=True
    )
    convert: Mapped[str] = mapped_column(String(8))  # ask|auto|off

"""What jobs have found out about pairs of models and adapters, and what they do with adapters."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, Id, UtcDateTime, utc_now


class Comparison(Base):
    """A report on two revisions. It goes with either of them.

    key: names the weights of both and the domains that hold them, so that equal weights share a
    report where the same people may read them. totals, tensors: JSON, compressed by Zstandard.
    """

    __tablename__ = "comparisons"
    __table_args__ = (Index("ix_comparisons_used", "used_at", "id"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex
    key: Mapped[str] = mapped_column(String(64), unique=True)
    first_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), index=True
    )
    second_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), index=True
    )
    totals: Mapped[bytes] = mapped_column(LargeBinary)
    tensors: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    size: Mapped[int] = mapped_column(BigInteger)  # of all its bytes, with those of its parts
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    used_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)  # to an hour


class ComparisonPart(Base):
    """Histograms and heat maps of some tensors of a comparison: JSON, compressed by Zstandard."""

    __tablename__ = "comparison_parts"
    comparison_id: Mapped[str] = mapped_column(
        ForeignKey("comparisons.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


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

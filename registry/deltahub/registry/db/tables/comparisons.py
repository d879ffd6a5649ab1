"""What jobs have found out about pairs of models."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, UtcDateTime, utc_now


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

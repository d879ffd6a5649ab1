"""Revisions that no branch or tag reaches any more, and rules of what history is kept."""

from datetime import datetime

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, Id, UtcDateTime, utc_now


class DroppedRevision(Base):
    """A revision that was dropped. It is no row of `revisions` any more, so no reader finds it.

    Its files are kept until the grace ends, so that a writer may take it back.
    """

    __tablename__ = "dropped_revisions"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    repository_id: Mapped[int] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), index=True
    )
    commit: Mapped[str] = mapped_column(String(40))
    parent_commit: Mapped[str | None] = mapped_column(String(40))
    number: Mapped[int] = mapped_column(default=1, server_default="1")
    message: Mapped[str] = mapped_column(Text, default="")
    author_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    declared_base: Mapped[str | None] = mapped_column(String(300))
    reason: Mapped[str] = mapped_column(String(20))  # retention/drop.py: Reason
    dropped_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now, index=True)
    dropped_by: Mapped[str | None] = mapped_column(String(96))  # None: a rule of retention, or gc
    tree_id: Mapped[int | None] = mapped_column(ForeignKey("tree_nodes.id"), index=True)


class RetentionRule(Base):
    """What history is kept, of one repository or of all of a namespace that have no own rule.

    Exactly one of namespace_id and repository_id is set. See retention/prune.py.
    """

    __tablename__ = "retention_rules"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[int | None] = mapped_column(
        ForeignKey("namespaces.id", ondelete="CASCADE"), unique=True
    )
    repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), unique=True
    )
    keep_last: Mapped[int] = mapped_column()
    keep_every: Mapped[int | None] = mapped_column()
    older_than_s: Mapped[int | None] = mapped_column()

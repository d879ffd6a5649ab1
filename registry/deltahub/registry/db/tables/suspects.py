"""Rows that may be garbage: triggers of the database note each that is new, or lost a reference."""

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, Id


class Suspect(Base):
    """A file, tensor or pack (one of the columns) that nobody has proved to be needed since.

    Migration 0008 has the triggers that add rows. A row stays while no revision lists the file, no
    file needs the tensor, or the pack has dead bytes: maintenance/gc/settle.py deletes the others.
    """

    __tablename__ = "suspects"
    # Ids are never given again: a collection deletes rows that it has read before.
    __table_args__ = ({"sqlite_autoincrement": True},)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    file_id: Mapped[int | None] = mapped_column(BigInteger)
    tensor_id: Mapped[int | None] = mapped_column(BigInteger)
    pack_id: Mapped[str | None] = mapped_column(String(32))

"""When each object was proved, what was found to be wrong, and second copies of packs."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, UtcDateTime, partial_index, utc_now


class Proof(Base):
    """When an object's bytes were last read and compared with their hash. No row: never since they
    were written. A row may outlive its object: scrub deletes it later.
    """

    __tablename__ = "proofs"
    kind: Mapped[str] = mapped_column(String(8), primary_key=True)  # pack|copy|landing|xorb
    object_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    checked_at: Mapped[datetime] = mapped_column(UtcDateTime)  # whatever came of it
    proved_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # they were right


class FoundDamage(Base):
    """Damage of one object. It stays in the table after it is repaired, or the object is gone."""

    __tablename__ = "findings"
    __table_args__ = (partial_index("ix_findings_open", "state", "state = 'open'"),)
    kind: Mapped[str] = mapped_column(String(8), primary_key=True)  # as Proof.kind, or tensor
    object_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    code: Mapped[str] = mapped_column(String(40), primary_key=True)  # of losses/codes.py
    text: Mapped[str] = mapped_column(Text)
    # {"names", "n_names"}: some of the files that need the object, and how many do.
    affected: Mapped[dict[str, Any]] = mapped_column(JSON)
    found_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    last_seen_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    state: Mapped[str] = mapped_column(String(8), default="open")  # open | repaired | gone
    how: Mapped[str | None] = mapped_column(String(200))  # it was repaired


class PackCopy(Base):
    """The second copy of a pack that many files depend on; see replicas/copies.py."""

    __tablename__ = "pack_copies"
    pack_id: Mapped[str] = mapped_column(ForeignKey("packs.id"), primary_key=True)
    # Random, part of the object's key: whoever deletes the object of an earlier copy late does not
    # delete this one's.
    id: Mapped[str] = mapped_column(String(32), unique=True)
    state: Mapped[str] = mapped_column(String(16))  # writing | live | condemned
    size: Mapped[int] = mapped_column(BigInteger)
    # When its writer began; a later writer that goes on renews it.
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)

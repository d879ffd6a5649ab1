"""Unfinished uploads whose bytes lie in a bucket, so that any process goes on with them."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, UtcDateTime


class SpooledUpload(Base):
    """An unfinished upload: its parts in the bucket, and the bytes after them, the tail."""

    __tablename__ = "spooled_uploads"
    landing_id: Mapped[str] = mapped_column(
        ForeignKey("landings.id", ondelete="CASCADE"), primary_key=True
    )
    mark: Mapped[str] = mapped_column(String(32))  # of the store that has the parts
    # A random number of the connection that receives it, or was the last to do so; and until when
    # others wait for it, by the clock of the database.
    receiver: Mapped[str] = mapped_column(String(32))
    receiving_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    received: Mapped[int] = mapped_column(BigInteger, default=0)
    part_bytes: Mapped[int] = mapped_column(BigInteger)  # of each part but the last
    multipart_id: Mapped[str | None] = mapped_column(Text)  # the bucket's name of the parts
    tail_id: Mapped[str | None] = mapped_column(String(32))  # random hex, names the object
    tail_crc32: Mapped[int | None] = mapped_column(BigInteger)


class SpooledPart(Base):
    """A part that the bucket has confirmed; see storage/base.py, SentPart."""

    __tablename__ = "spooled_parts"
    landing_id: Mapped[str] = mapped_column(
        ForeignKey("spooled_uploads.landing_id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    etag: Mapped[str] = mapped_column(Text)
    crc32: Mapped[str] = mapped_column(String(8))

"""Unfinished uploads in the bucket and the database."""

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"


def upgrade() -> None:
    op.create_table(
        "spooled_uploads",
        sa.Column(
            "landing_id", sa.String(32), sa.ForeignKey("landings.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("mark", sa.String(32), nullable=False),
        sa.Column("receiver", sa.String(32), nullable=False),
        sa.Column("receiving_until", sa.DateTime(timezone=True)),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("part_bytes", sa.BigInteger(), nullable=False),
        sa.Column("multipart_id", sa.Text()),
        sa.Column("tail_id", sa.String(32)),
        sa.Column("tail_crc32", sa.BigInteger()),
    )  # fmt: skip
    op.create_table(
        "spooled_parts",
        sa.Column(
            "landing_id", sa.String(32),
            sa.ForeignKey("spooled_uploads.landing_id", ondelete="CASCADE"), primary_key=True,
        ),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.Column("crc32", sa.String(8), nullable=False),
    )  # fmt: skip

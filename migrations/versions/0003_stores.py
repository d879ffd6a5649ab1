"""The hub knows where its objects lie, and what must not be deleted from there."""

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "object_stores",
        sa.Column("mark", sa.String(32), primary_key=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("changed_at", MOMENT, nullable=False),
    )
    op.create_table("hub_identity", sa.Column("id", sa.String(32), primary_key=True))
    op.create_table(
        "deletion_holds",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("purpose", sa.String(40), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
    )
    op.create_table(
        "deferred_deletions",
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("deferred_at", MOMENT, nullable=False),
    )
    op.create_table(
        "proofs",
        sa.Column("kind", sa.String(8), primary_key=True),
        sa.Column("object_id", sa.String(32), primary_key=True),
        sa.Column("checked_at", MOMENT, nullable=False),
        sa.Column("proved_at", MOMENT, nullable=True),
    )
    op.create_table(
        "findings",
        sa.Column("kind", sa.String(8), primary_key=True),
        sa.Column("object_id", sa.String(64), primary_key=True),
        sa.Column("code", sa.String(40), primary_key=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("affected", sa.JSON(), nullable=False),
        sa.Column("found_at", MOMENT, nullable=False),
        sa.Column("last_seen_at", MOMENT, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("how", sa.String(200), nullable=True),
    )
    op.create_index(
        "ix_findings_open",
        "findings",
        ["state"],
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_table(
        "pack_copies",
        sa.Column("pack_id", sa.String(32), sa.ForeignKey("packs.id"), primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
    )

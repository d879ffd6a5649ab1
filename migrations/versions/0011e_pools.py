"""Inputs that were made up for several adapters of one task, and which move makes them up first."""

import sqlalchemy as sa
from alembic import op

revision: str = "0011e"
down_revision: str | None = "0011d"

TIME = sa.DateTime(timezone=True)
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "pooled_inputs",
        sa.Column(
            "kit_id",
            sa.String(32),
            sa.ForeignKey("adapter_kits.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column(
            "base_revision_id",
            ID,
            sa.ForeignKey("revisions.id", ondelete="CASCADE"),
            primary_key=True,
            index=True,
        ),
        sa.Column("seed", sa.BigInteger(), primary_key=True),
        sa.Column("device", sa.String(8), primary_key=True),
        sa.Column("call", sa.Integer(), primary_key=True),
        sa.Column("made", sa.JSON(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False, index=True),
    )
    op.add_column("upgraded_adapters", sa.Column("waits_for_id", ID, nullable=True))

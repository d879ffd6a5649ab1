"""What moves of adapters to other bases need, private to the hub."""

import sqlalchemy as sa
from alembic import op

revision: str = "0011b"
down_revision: str | None = "0011a"

TIME = sa.DateTime(timezone=True)
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "adapter_kits",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column(
            "repository_id",
            ID,
            sa.ForeignKey("repositories.id", ondelete="CASCADE"),
            nullable=False,
            unique=True,
        ),
        sa.Column(
            "base_revision_id",
            ID,
            sa.ForeignKey("revisions.id", ondelete="SET NULL"),
            nullable=True,
        ),
        sa.Column("kit", sa.JSON(), nullable=False),
        sa.Column("adapter_sha256", sa.String(64), nullable=False),
        sa.Column("discriminator_sha256", sa.String(64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
    )
    op.create_index("ix_adapter_kits_base_revision_id", "adapter_kits", ["base_revision_id"])
    op.create_table(
        "adapter_kit_parts",
        sa.Column(
            "kit_id",
            sa.String(32),
            sa.ForeignKey("adapter_kits.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
    )

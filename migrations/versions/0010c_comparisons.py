"""Reports on pairs of models."""

import sqlalchemy as sa
from alembic import op

revision: str = "0010c"
down_revision: str | None = "0010b"

TIME = sa.DateTime(timezone=True)
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _revision(name: str) -> sa.Column[int]:
    target = sa.ForeignKey("revisions.id", ondelete="CASCADE")
    return sa.Column(name, ID, target, nullable=False)


def upgrade() -> None:
    op.create_table(
        "comparisons",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        _revision("first_id"),
        _revision("second_id"),
        sa.Column("totals", sa.LargeBinary(), nullable=False),
        sa.Column("tensors", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("used_at", TIME, nullable=False),
    )
    op.create_index("ix_comparisons_first_id", "comparisons", ["first_id"])
    op.create_index("ix_comparisons_second_id", "comparisons", ["second_id"])
    op.create_index("ix_comparisons_used", "comparisons", ["used_at", "id"])
    op.create_table(
        "comparison_parts",
        sa.Column(
            "comparison_id",
            sa.String(32),
            sa.ForeignKey("comparisons.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
    )

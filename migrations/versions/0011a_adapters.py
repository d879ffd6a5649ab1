"""What was found out about adapters, and whether they are converted by themselves."""

import sqlalchemy as sa
from alembic import op

revision: str = "0011a"
down_revision: str | None = "0011"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _row_of(table: str) -> sa.Column[int]:
    name = {"namespaces": "namespace_id", "repositories": "repository_id"}[table]
    target = sa.ForeignKey(f"{table}.id", ondelete="CASCADE")
    return sa.Column(name, ID, target, nullable=True, unique=True)


def upgrade() -> None:
    op.create_table(
        "adapter_reports",
        sa.Column(
            "revision_id",
            ID,
            sa.ForeignKey("revisions.id", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
    )
    op.create_table(
        "conversion_rules",
        sa.Column("id", ID, primary_key=True),
        _row_of("namespaces"),
        _row_of("repositories"),
        sa.Column("convert", sa.String(8), nullable=False),
    )

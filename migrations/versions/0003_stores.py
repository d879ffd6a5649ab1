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

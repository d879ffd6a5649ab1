"""What the hub held over time."""

import sqlalchemy as sa
from alembic import op

revision: str = "0010b"
down_revision: str | None = "0010a"


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def upgrade() -> None:
    op.create_table(
        "hub_history",
        sa.Column("at", sa.DateTime(timezone=True), primary_key=True),
        _count("n_repositories"),
        _count("n_files"),
        _count("logical_bytes"),
        sa.Column("stored_bytes", sa.JSON(), nullable=False),
        _count("jobs_done"),
        _count("jobs_failed"),
        _count("sent_bytes"),
        _count("received_bytes"),
        _count("requests"),
    )

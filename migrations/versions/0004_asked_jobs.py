"""Jobs that people ask for: a lane of their own, a key against asking twice, and a log."""

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"

# SQLite generates ids only for columns of type INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("lane", sa.String(12), nullable=False, server_default="store"))
        jobs.add_column(sa.Column("idempotency_key", sa.String(64)))
        jobs.create_index("ix_jobs_key", ["user_id", "idempotency_key"], unique=True)
    op.create_table(
        "job_lines",
        sa.Column("id", ID, primary_key=True),
        sa.Column(
            "job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
    )
    op.create_index("ix_job_lines_of_job", "job_lines", ["job_id", "id"])

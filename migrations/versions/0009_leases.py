"""Many processes on one database: which of them live, and which worker runs which job."""

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("is_shared", sa.Boolean(), nullable=False),
        sa.Column("command", sa.String(80), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.Column("begun_at", TIME, nullable=False),
        sa.Column("renewed_at", TIME, nullable=False),
        sa.Column("looked_at", TIME),
    )
    op.create_index("ix_leases_name", "leases", ["name"])
    op.add_column("jobs", sa.Column("worker_id", sa.String(32)))
    op.add_column("jobs", sa.Column("n_deaths", sa.Integer(), nullable=False, server_default="0"))
    has_worker = sa.text("worker_id IS NOT NULL")
    op.create_index(
        "ix_jobs_worker", "jobs", ["worker_id"],
        sqlite_where=has_worker, postgresql_where=has_worker,
    )  # fmt: skip

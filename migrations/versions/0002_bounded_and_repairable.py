"""Uploads have checksums by block, so that no reader gets a damaged one."""

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"

# SQLite generates ids only for columns of type INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    with op.batch_alter_table("landings") as landings:
        landings.add_column(sa.Column("checksums", sa.LargeBinary()))
    with op.batch_alter_table("tensors") as tensors:
        tensors.add_column(sa.Column("lost", sa.String(8)))
    op.create_index(
        "ix_tensors_lost",
        "tensors",
        ["lost"],
        sqlite_where=sa.text("lost IS NOT NULL"),
        postgresql_where=sa.text("lost IS NOT NULL"),
    )
    with op.batch_alter_table("jobs") as jobs:
        for name, kind in (("size_bytes", sa.BigInteger()), ("attempts", sa.Integer())):
            jobs.add_column(sa.Column(name, kind, nullable=False, server_default="0"))
        for name in ("due_at", "turn_at", "failing_since", "retry_at"):
            jobs.add_column(sa.Column(name, MOMENT))
        jobs.create_index("ix_jobs_turns", ["user_id", "turn_at"])
    op.create_index(
        "ix_jobs_withdraw",
        "jobs",
        ["repository_id"],
        sqlite_where=sa.text("kind = 'withdraw'"),
        postgresql_where=sa.text("kind = 'withdraw'"),
    )
    # Xorbs of one user are counted.
    with op.batch_alter_table("xorbs") as xorbs:
        xorbs.add_column(sa.Column("user_id", ID))
        xorbs.create_foreign_key(
            "fk_xorbs_user_id_users", "users", ["user_id"], ["id"], ondelete="SET NULL"
        )
        xorbs.create_index("ix_xorbs_user_id", ["user_id"])

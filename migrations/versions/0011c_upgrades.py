"""Upgrades of bases: the adapters that move to a newer base, and whether that is proposed."""

import sqlalchemy as sa
from alembic import op

revision: str = "0011c"
down_revision: str | None = "0011b"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _row_of(
    name: str,
    table: str,
    on_delete: str = "CASCADE",
    *,
    nullable: bool = True,
    unique: bool = False,
    index: bool = False,
) -> sa.Column[int]:
    target = sa.ForeignKey(f"{table}.id", ondelete=on_delete)
    return sa.Column(name, ID, target, nullable=nullable, unique=unique, index=index)


def upgrade() -> None:
    op.create_table(
        "upgrades",
        sa.Column("id", ID, primary_key=True),
        _row_of("old_repository_id", "repositories", "SET NULL"),
        _row_of("new_repository_id", "repositories", "SET NULL", index=True),
        sa.Column("old_name", sa.String(200), nullable=False),
        sa.Column("new_name", sa.String(200), nullable=False),
        sa.Column("old_commit", sa.String(40), nullable=False),
        sa.Column("new_commit", sa.String(40), nullable=False),
        sa.Column("source", sa.String(8), nullable=False),
        sa.Column("policy", sa.String(8), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        _row_of("user_id", "users", "SET NULL"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("old_repository_id", "new_repository_id"),
    )
    op.create_index("ix_upgrades_state", "upgrades", ["state", "id"])
    op.create_table(
        "upgraded_adapters",
        sa.Column("id", ID, primary_key=True),
        _row_of("upgrade_id", "upgrades", nullable=False),
        _row_of("adapter_repository_id", "repositories", "SET NULL", index=True),
        _row_of("namespace_id", "namespaces", nullable=False),
        sa.Column("adapter_name", sa.String(200), nullable=False),
        sa.Column("adapter_commit", sa.String(40), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("key", sa.String(64)),
        sa.Column("job_id", sa.String(32), index=True),
        _row_of("user_id", "users", "SET NULL"),
        sa.Column("scope", sa.String(16), nullable=False),
        _row_of("result_repository_id", "repositories", "SET NULL", index=True),
        sa.Column("result_name", sa.String(200)),
        sa.Column("result_commit", sa.String(40)),
        sa.Column("deletion_id", sa.String(32), index=True),
        sa.Column("outcome", sa.JSON()),
        sa.Column("why", sa.Text()),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("upgrade_id", "adapter_repository_id"),
    )
    op.create_index("ix_upgraded_adapters_state", "upgraded_adapters", ["state", "id"])
    op.create_table(
        "upgrade_rules",
        sa.Column("id", ID, primary_key=True),
        _row_of("namespace_id", "namespaces", unique=True),
        _row_of("repository_id", "repositories", unique=True),
        sa.Column("policy", sa.String(8), nullable=False),
    )

"""Dropped revisions, rules of retention, quotas, and the number of each commit of a branch."""

from itertools import groupby

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"

# SQLite generates ids only for columns of type INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    with op.batch_alter_table("revisions") as revisions:
        revisions.add_column(sa.Column("number", sa.Integer(), nullable=False, server_default="1"))
        revisions.create_index("ix_revisions_parent", ["repository_id", "parent_commit"])
    with op.batch_alter_table("files") as files:
        files.add_column(sa.Column("left_by", sa.String(20)))
    _number_commits()
    op.create_table(
        "dropped_revisions",
        sa.Column("id", ID, primary_key=True),
        sa.Column(
            "repository_id", ID, sa.ForeignKey("repositories.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("commit", sa.String(40), nullable=False),
        sa.Column("parent_commit", sa.String(40)),
        sa.Column("number", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("author_id", ID, sa.ForeignKey("users.id", ondelete="SET NULL")),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("declared_base", sa.String(300)),
        sa.Column("reason", sa.String(20), nullable=False),
        sa.Column("dropped_at", MOMENT, nullable=False),
        sa.Column("dropped_by", sa.String(96)),
    )  # fmt: skip
    op.create_index("ix_dropped_revisions_repository_id", "dropped_revisions", ["repository_id"])
    op.create_index("ix_dropped_revisions_dropped_at", "dropped_revisions", ["dropped_at"])
    op.create_table(
        "dropped_entries",
        sa.Column(
            "dropped_id", ID, sa.ForeignKey("dropped_revisions.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("path", sa.String(1024), primary_key=True),
        sa.Column("file_id", ID, sa.ForeignKey("files.id"), nullable=False),
        sa.Column("mode", sa.String(8), nullable=False),
    )  # fmt: skip
    op.create_index("ix_dropped_entries_file_id", "dropped_entries", ["file_id"])
    op.create_table(
        "retention_rules",
        sa.Column("id", ID, primary_key=True),
        sa.Column(
            "namespace_id", ID, sa.ForeignKey("namespaces.id", ondelete="CASCADE"), unique=True
        ),
        sa.Column(
            "repository_id", ID, sa.ForeignKey("repositories.id", ondelete="CASCADE"), unique=True
        ),
        sa.Column("keep_last", sa.Integer(), nullable=False),
        sa.Column("keep_every", sa.Integer()),
        sa.Column("older_than_s", sa.Integer()),
    )
    op.create_table(
        "quotas",
        sa.Column(
            "namespace_id", ID, sa.ForeignKey("namespaces.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("stored_bytes", sa.BigInteger()),
        sa.Column("logical_bytes", sa.BigInteger()),
        sa.Column("repositories", sa.Integer()),
    )  # fmt: skip
    op.create_table(
        "repository_usage",
        sa.Column(
            "repository_id", ID, sa.ForeignKey("repositories.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("logical_bytes", sa.BigInteger(), nullable=False),
    )  # fmt: skip


def _number_commits() -> None:
    """Number the commits of each repository along their parents, which have smaller ids."""
    revisions = sa.table(
        "revisions", sa.column("id"), sa.column("repository_id"), sa.column("commit"),
        sa.column("parent_commit"), sa.column("number"),
    )  # fmt: skip
    columns = (revisions.c.repository_id, revisions.c.id, revisions.c.commit)
    query = sa.select(*columns, revisions.c.parent_commit).order_by(*columns[:2])
    connection = op.get_bind()
    changes = []
    for _, rows in groupby(connection.execute(query), key=lambda row: row[0]):
        numbers: dict[str, int] = {}
        for _, row_id, commit, parent in rows:
            numbers[commit] = numbers.get(parent, 0) + 1
            if numbers[commit] > 1:
                changes.append({"row": row_id, "to": numbers[commit]})
    if changes:
        change = sa.update(revisions).where(revisions.c.id == sa.bindparam("row"))
        connection.execute(change.values(number=sa.bindparam("to")), changes)

"""Names are found whatever their case, and old names of repositories lead to the new ones."""

import sqlalchemy as sa
from alembic import op

revision: str = "0011d"
down_revision: str | None = "0011c"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # Not unique: a hub may hold names that differ only in case, and both are kept. A migration that
    # rebuilds one of these tables on SQLite has to make its index again: alembic does not see it.
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    # Whatever language a database of PostgreSQL is for: in Turkish the lower case of I is no i.
    lower = sa.text('lower(name COLLATE "C")' if is_postgresql else "lower(name)")
    op.create_index("ix_namespaces_lower_name", "namespaces", [lower])
    op.create_index("ix_repositories_lower_name", "repositories", ["namespace_id", lower])
    op.create_table(
        "old_names",
        sa.Column("id", ID, primary_key=True),
        sa.Column(
            "namespace_id",
            ID,
            sa.ForeignKey("namespaces.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("lower_name", sa.String(96), nullable=False),
        sa.Column(
            "repository_id",
            ID,
            sa.ForeignKey("repositories.id", ondelete="CASCADE"),
            nullable=False,
            index=True,
        ),
        sa.UniqueConstraint("namespace_id", "lower_name"),
    )

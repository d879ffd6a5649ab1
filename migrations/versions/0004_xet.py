"""What Hugging Face clients upload by Xet: xorbs, where their chunks lie in files, epochs."""

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"

# SQLite gives autoincrementing ids only to INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "xorbs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("repository_id", ID),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("chunks", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_xorbs_repository_id_repositories",
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_xorbs"),
    )
    op.create_index("ix_xorbs_lookup", "xorbs", ["repository_id", "hash"])

    op.create_table(
        "xet_ranges",
        sa.Column("id", ID, nullable=False),
        sa.Column("xorb", sa.LargeBinary(length=32), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("end", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("chunks", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_xet_ranges"),
    )
    op.create_index("ix_xet_ranges_lookup", "xet_ranges", ["xorb", "first"])
    op.create_index("ix_xet_ranges_sha256", "xet_ranges", ["sha256"])

    op.create_table(
        "xet_epochs",
        sa.Column("repository_id", ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_xet_epochs_repository_id_repositories",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("repository_id", name="pk_xet_epochs"),
    )

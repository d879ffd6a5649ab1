"""How people log in: sessions of browsers, passwords, invitations, identities elsewhere."""

import sqlalchemy as sa
from alembic import op

revision: str = "0010a"
down_revision: str | None = "0010"

TIME = sa.DateTime(timezone=True)


ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _user(*, is_key: bool = False) -> sa.Column[int]:
    user = sa.ForeignKey("users.id", ondelete="CASCADE")
    return sa.Column("user_id", ID, user, primary_key=is_key, nullable=False)


def _id() -> sa.Column[int]:
    return sa.Column("id", ID, primary_key=True)


def upgrade() -> None:
    op.add_column("users", sa.Column("disabled_at", TIME))
    op.create_table(
        "web_sessions",
        _id(),
        _user(),
        sa.Column("token_id", ID, sa.ForeignKey("tokens.id", ondelete="CASCADE")),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("agent", sa.String(300), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
    )
    op.create_index("ix_web_sessions_user_id", "web_sessions", ["user_id"])
    op.create_index("ix_web_sessions_token_id", "web_sessions", ["token_id"])
    op.create_table(
        "passwords",
        _user(is_key=True),
        sa.Column("hash", sa.String(200), nullable=False),
        sa.Column("changed_at", TIME, nullable=False),
        sa.Column("n_failures", sa.Integer(), nullable=False),
        sa.Column("failed_at", TIME),
    )
    op.create_table(
        "invitations",
        _id(),
        _user(),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
    )
    op.create_index("ix_invitations_user_id", "invitations", ["user_id"])
    op.create_table(
        "identities",
        sa.Column("issuer", sa.String(300), primary_key=True),
        sa.Column("subject", sa.String(300), primary_key=True),
        _user(),
        sa.Column("created_at", TIME, nullable=False),
    )
    op.create_index("ix_identities_user_id", "identities", ["user_id"])

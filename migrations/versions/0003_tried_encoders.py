"""Frames remember which encoders made them, or could not make them smaller."""

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"


def upgrade() -> None:
    # What older releases wrote has not been tried by the encoders of this one.
    op.add_column("frames", sa.Column("tried", sa.Integer(), nullable=False, server_default="0"))

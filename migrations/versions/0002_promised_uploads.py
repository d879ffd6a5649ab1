"""Uploads say themselves until when somebody may commit them; dates alone did not."""

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"


def upgrade() -> None:
    op.add_column("landings", sa.Column("promised_until", sa.DateTime(timezone=True)))
    # Which of them were promised cannot be known any more: none may go before its time.
    op.execute("UPDATE landings SET promised_until = expires_at WHERE state = 'complete'")

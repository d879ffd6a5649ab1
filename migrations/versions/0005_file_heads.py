"""The chunk map knows files by their first chunk, which is what clients ask for."""

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"


def upgrade() -> None:
    # The hash of the file's first chunk, in the row where the file begins.
    op.add_column("xet_ranges", sa.Column("head", sa.LargeBinary(length=32)))
    op.execute('UPDATE xet_ranges SET head = substr(chunks, 1, 32) WHERE "offset" = 0')
    op.create_index("ix_xet_ranges_head", "xet_ranges", ["head"])

"""A row of the chunk map serves those alone who may share data with who sent the xorb."""

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"

# SQLite gives autoincrementing ids only to INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("xet_ranges", sa.Column("domain_id", ID))
    # Nobody wrote down where a xorb was sent to: that is certain of files that only one domain has.
    op.execute(
        "UPDATE xet_ranges SET domain_id = ("
        "SELECT CASE WHEN min(domain_id) = max(domain_id) THEN min(domain_id) END"
        " FROM files WHERE files.sha256 = xet_ranges.sha256)"
    )

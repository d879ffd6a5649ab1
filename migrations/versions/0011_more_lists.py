"""Lists by size and by what is saved, and filters by dtype and role.

These are columns and keys that writers of older releases would not keep, so the digits change.
"""

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010c"

ROLES = ("adapter", "merge", "quantized", "export")
BATCH = 1000
HEADS = sa.text(
    "SELECT r.id, r.is_private, r.namespace_id, r.role, v.declared_base, f.facts"
    " FROM repositories r JOIN revisions v ON v.id = r.head_id"
    " JOIN revision_facts f ON f.revision_id = v.id WHERE r.id > :after ORDER BY r.id LIMIT :n"
)
# A card may have had a tag of such a name.
KEY = sa.text(
    "INSERT INTO model_tags (tag, is_private, namespace_id, repository_id)"
    " VALUES (:tag, :is_private, :namespace_id, :id) ON CONFLICT DO NOTHING"
)


def upgrade() -> None:
    # Columns are added in place: a rebuilt table would lose its triggers.
    for name in ("logical_bytes", "saved_bytes"):
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        op.add_column("repositories", column)
    op.execute(
        "UPDATE repositories SET logical_bytes = u.logical_bytes, saved_bytes ="
        " CASE WHEN u.stored_bytes < u.logical_bytes THEN u.logical_bytes - u.stored_bytes ELSE 0"
        " END FROM repository_usage u WHERE u.repository_id = repositories.id"
    )
    for order, column_name in (("size", "logical_bytes"), ("saved", "saved_bytes")):
        columns = ["is_private", column_name, "id"]
        op.create_index(f"ix_repositories_{order}", "repositories", columns)
        op.create_index(f"ix_repositories_{order}_in", "repositories", ["namespace_id", *columns])
    connection = op.get_bind()
    for rows in _heads(connection):
        keys = [
            {"tag": tag, "is_private": row.is_private, "namespace_id": row.namespace_id,
             "id": row.id}
            for row in rows
            for tag in _tags(row)
        ]  # fmt: skip
        connection.execute(KEY, keys)


def _heads(connection: sa.Connection) -> Iterator[list[Any]]:
    after = 0
    while rows := list(connection.execute(HEADS, {"after": after, "n": BATCH})):
        yield rows
        after = rows[-1].id


def _tags(row: Any) -> list[str]:
    # The databases' own functions refuse a row with a NUL in one of its texts.
    facts = json.loads(row.facts) if isinstance(row.facts, str) else row.facts
    if row.role is not None:
        role = row.role
    elif facts["adapter_base"] is not None:
        role = "adapter"
    elif facts["relation"] in ROLES:
        role = facts["relation"]
    else:
        has_base = facts["bases"] or row.declared_base not in (None, "none")
        role = "finetune" if has_base else "base"
    return [f"#role:{role}", *(f"#dtype:{dtype}" for dtype in facts["parameters"] or ())]

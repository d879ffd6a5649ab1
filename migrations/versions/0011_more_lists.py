"""Lists by size and by what is saved, and filters by dtype and role.

These are columns and keys that writers of older releases would not keep, so the digits change.
"""

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010c"

# Of safetensors headers (codecs/dtypes.py) when this version was made.
DTYPES = (
    "BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4",
    "F6_E2M3", "F6_E3M2", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64",
    "I64", "U64",
)  # fmt: skip
KEY = """
INSERT INTO model_tags (tag, is_private, namespace_id, repository_id)
    SELECT {tag}, r.is_private, r.namespace_id, r.id FROM repositories r
    JOIN revisions v ON v.id = r.head_id JOIN revision_facts f ON f.revision_id = v.id
    WHERE {condition}
"""
ROLE = """
'#role:' || CASE
    WHEN r.role IS NOT NULL THEN r.role
    WHEN {adapter_base} IS NOT NULL THEN 'adapter'
    WHEN {relation} IN ('adapter', 'merge', 'quantized') THEN {relation}
    WHEN {n_bases} > 0 OR coalesce(v.declared_base, 'none') != 'none' THEN 'finetune'
    ELSE 'base' END
"""


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
    facts = _sqlite if op.get_bind().dialect.name == "sqlite" else _postgresql
    for dtype in DTYPES:
        condition = f"{facts('parameters', dtype)} IS NOT NULL"
        op.execute(KEY.format(tag=f"'#dtype:{dtype}'", condition=condition))
    names = {name: facts(name) for name in ("adapter_base", "relation")}
    names["n_bases"] = (
        "json_array_length(f.facts, '$.bases')"
        if facts is _sqlite
        else "json_array_length(f.facts -> 'bases')"
    )
    op.execute(KEY.format(tag=ROLE.format(**names), condition="1 = 1"))


def _sqlite(*path: str) -> str:
    return f"json_extract(f.facts, '$.{'.'.join(path)}')"


def _postgresql(*path: str) -> str:
    return f"f.facts #>> '{{{','.join(path)}}}'"

"""Rows that may be garbage, so that a collection looks at what changed and not at everything."""

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"

# SQLite generates ids only for columns of type INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# (table, event, condition, what is noted). A row is noted when it is made, and when a row that
# needed it goes or needs another one.
TRIGGERS = (
    ("files", "INSERT", "", ("file_id", "new.id")),
    ("files", "UPDATE OF left_by", "new.left_by IS NOT NULL", ("file_id", "new.id")),
    ("files", "DELETE", "old.recipe_tensor_id IS NOT NULL", ("tensor_id", "old.recipe_tensor_id")),
    (
        "files", "UPDATE OF recipe_tensor_id", "old.recipe_tensor_id IS NOT NULL",
        ("tensor_id", "old.recipe_tensor_id"),
    ),
    ("tree_entries", "DELETE", "", ("file_id", "old.file_id")),
    ("tree_entries", "UPDATE OF file_id", "", ("file_id", "old.file_id")),
    ("tensors", "INSERT", "", ("tensor_id", "new.id")),
    ("file_tensors", "DELETE", "", ("tensor_id", "old.tensor_id")),
    ("packs", "INSERT", "", ("pack_id", "new.id")),
    ("packs", "UPDATE OF state", "", ("pack_id", "new.id")),
    ("frames", "DELETE", "", ("pack_id", "old.pack_id")),
    ("frames", "UPDATE OF pack_id, length", "", ("pack_id", "old.pack_id")),
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "suspects",
        sa.Column("id", ID, primary_key=True),
        sa.Column("file_id", sa.BigInteger()),
        sa.Column("tensor_id", sa.BigInteger()),
        sa.Column("pack_id", sa.String(32)),
        sqlite_autoincrement=True,
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for table, event, condition, (column, value) in TRIGGERS:
        name = f"{table}_{event.split()[0].lower()}_{column}_suspect"
        note = f"INSERT INTO suspects ({column}) VALUES ({value});"
        when = f"FOR EACH ROW WHEN ({condition})" if condition else "FOR EACH ROW"
        if is_sqlite:
            body = f"BEGIN {note} END"
        else:
            body = f"EXECUTE FUNCTION {name}()"
            op.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN {note} RETURN NULL; END $$"
            )
        op.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} {when} {body}")
    # Nothing is proved yet: the first collection looks at everything.
    for table, column in (("files", "file_id"), ("tensors", "tensor_id"), ("packs", "pack_id")):
        op.execute(f"INSERT INTO suspects ({column}) SELECT id FROM {table}")

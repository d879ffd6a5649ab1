"""Lists of models: facts of revisions, tags, the head of main, downloads, and a search of names."""

import sqlalchemy as sa
from alembic import op

from deltahub.registry.errors import Unavailable

revision: str = "0005"
down_revision: str | None = "0004"

# SQLite generates ids only for columns of type INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# The trigrams of full names in small letters: those of public repositories, and those of private
# ones, so that a search reads only what its caller may read.
NAME_TABLES = ("public_names", "private_names")

SQLITE_NAMES = "CREATE VIRTUAL TABLE {table} USING fts5(name, tokenize='trigram')"
POSTGRESQL_NAMES = "CREATE TABLE {table} (repository_id BIGINT PRIMARY KEY, name TEXT NOT NULL)"
POSTGRESQL_TRIGRAMS = "CREATE INDEX ix_{table} ON {table} USING gin (name gin_trgm_ops)"

# A repository's row is the only thing that its triggers read, beside the name of its namespace.
ADD_NAMES = """
INSERT INTO public_names ({id}, name) SELECT new.id, lower(n.name || '/' || new.name)
    FROM namespaces n WHERE n.id = new.namespace_id AND NOT new.is_private;
INSERT INTO private_names ({id}, name) SELECT new.id, lower(n.name || '/' || new.name)
    FROM namespaces n WHERE n.id = new.namespace_id AND new.is_private;
"""
DROP_NAMES = """
DELETE FROM public_names WHERE {id} = old.id;
DELETE FROM private_names WHERE {id} = old.id;
"""
SCOPE_TAGS = """
UPDATE model_tags SET is_private = new.is_private, namespace_id = new.namespace_id
    WHERE repository_id = new.id;
"""
# (name of the trigger, when it runs, what it does)
TRIGGERS = (
    ("repositories_named", "AFTER INSERT", ADD_NAMES),
    (
        "repositories_renamed",
        "AFTER UPDATE OF name, namespace_id, is_private",
        DROP_NAMES + ADD_NAMES + SCOPE_TAGS,
    ),
    ("repositories_unnamed", "AFTER DELETE", DROP_NAMES),
)


def upgrade() -> None:
    # Columns are added in place: a rebuilt table would lose its triggers, and its rows those that
    # refer to them.
    for name in ("head_id", "downloads"):
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        op.add_column("repositories", column)
    op.drop_index("ix_repositories_newest", "repositories")
    for order, columns in (
        ("created", ["id"]),
        ("changed", ["head_id", "id"]),
        ("downloads", ["downloads", "id"]),
    ):
        op.create_index(f"ix_repositories_{order}", "repositories", ["is_private", *columns])
        scoped = ["namespace_id", "is_private", *columns]
        op.create_index(f"ix_repositories_{order}_in", "repositories", scoped)
    op.create_table(
        "revision_facts",
        sa.Column("revision_id", ID, primary_key=True, autoincrement=False),
        sa.Column("n_files", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("n_parameters", sa.BigInteger()),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("card", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["revision_id"],
            ["revisions.id"],
            name="fk_revision_facts_revision_id_revisions",
            ondelete="CASCADE",
        ),
    )
    op.create_table(
        "model_tags",
        sa.Column("tag", sa.String(250), primary_key=True),
        sa.Column("is_private", sa.Boolean(), primary_key=True),
        sa.Column("namespace_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("repository_id", ID, primary_key=True, autoincrement=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_model_tags_repository_id_repositories",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_model_tags_repository_id", "model_tags", ["repository_id"])
    if op.get_bind().dialect.name == "sqlite":
        _add_sqlite_names()
    else:
        _add_postgresql_names()
    _fill()


def _add_sqlite_names() -> None:
    for table in NAME_TABLES:
        op.execute(SQLITE_NAMES.format(table=table))
    for name, moment, body in TRIGGERS:
        body = body.format(id="rowid")
        op.execute(f"CREATE TRIGGER {name} {moment} ON repositories BEGIN {body} END")


def _add_postgresql_names() -> None:
    try:
        op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except sa.exc.DBAPIError as exc:
        raise Unavailable(
            "the database needs PostgreSQL's extension pg_trgm, and the hub cannot add it"
            f" ({' '.join(str(exc.orig).split())}): install PostgreSQL's contrib package on its"
            " machine, let an administrator of the database run `CREATE EXTENSION pg_trgm` in it,"
            " and start again"
        ) from exc
    for table in NAME_TABLES:
        op.execute(POSTGRESQL_NAMES.format(table=table))
        op.execute(POSTGRESQL_TRIGRAMS.format(table=table))
    for name, moment, body in TRIGGERS:
        body = body.format(id="repository_id")
        op.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {body} RETURN NULL; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {name} {moment} ON repositories FOR EACH ROW EXECUTE FUNCTION {name}()"
        )


def _fill() -> None:
    """The heads and names of repositories that are there. Their facts follow while the hub runs."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.execute(
        "UPDATE repositories SET head_id = coalesce((SELECT revision_id FROM refs WHERE"
        " repository_id = repositories.id AND kind = 'branch' AND refs.name = 'main'), 0)"
    )
    # An empty tag marks a head whose facts are not known (catalog/lists/model_tags.py).
    op.execute(
        "INSERT INTO model_tags (tag, is_private, namespace_id, repository_id)"
        " SELECT '', is_private, namespace_id, id FROM repositories WHERE head_id != 0"
    )
    for table, condition in zip(NAME_TABLES, ("NOT r.is_private", "r.is_private"), strict=True):
        op.execute(
            f"INSERT INTO {table} ({'rowid' if is_sqlite else 'repository_id'}, name)"
            " SELECT r.id, lower(n.name || '/' || r.name) FROM repositories r"
            f" JOIN namespaces n ON n.id = r.namespace_id WHERE {condition}"
        )

"""Turns the database of a hub into one that an older release wrote."""

import sqlite3
from contextlib import closing
from pathlib import Path

from support.registry.opened import DATABASE
from support.upgrades.old_schema import WITHOUT_KITS_AND_UPGRADES

_ENTRIES = """
CREATE TABLE {table} (
    {key} INTEGER NOT NULL,
    path VARCHAR(1024) NOT NULL,
    file_id INTEGER NOT NULL,
    mode VARCHAR(8) NOT NULL,
    CONSTRAINT pk_{table} PRIMARY KEY ({key}, path),
    CONSTRAINT fk_{table}_{key}_{owner} FOREIGN KEY({key}) REFERENCES {owner} (id)
        ON DELETE CASCADE,
    CONSTRAINT fk_{table}_file_id_files FOREIGN KEY(file_id) REFERENCES files (id)
)
"""
_COPY = """
INSERT INTO {table} SELECT r.id, e.path, e.file_id, e.mode FROM {owner} r
    JOIN tree_links t ON t.parent_id = r.tree_id
    JOIN tree_links g ON g.parent_id = t.child_id
    JOIN tree_entries e ON e.node_id = g.child_id
"""


# What version 0011 and those that add to it brought, as SQL that takes it away.
MORE_LISTS = (
    *WITHOUT_KITS_AND_UPGRADES,
    "DROP TABLE adapter_reports",
    "DROP TABLE conversion_rules",
    *(f"DROP INDEX ix_repositories_{order}{scope}" for order in ("size", "saved")
      for scope in ("", "_in")),
    *(f"ALTER TABLE repositories DROP COLUMN {name}" for name in ("logical_bytes", "saved_bytes")),
    "DELETE FROM model_tags WHERE tag LIKE '#role:%' OR tag LIKE '#dtype:%'",
    "UPDATE alembic_version SET version_num = '0010c'",
)  # fmt: skip


def make_0007(folder: Path) -> None:
    """Take away what later versions added: history; logins; spooled uploads; leases; suspects."""
    with closing(sqlite3.connect(folder / "data" / DATABASE)) as database:
        for statement in MORE_LISTS:
            database.execute(statement)
        for table in ("hub_history", "comparison_parts", "comparisons"):
            database.execute(f"DROP TABLE {table}")
        for table in ("web_sessions", "passwords", "invitations", "identities"):
            database.execute(f"DROP TABLE {table}")
        database.execute("ALTER TABLE users DROP COLUMN disabled_at")
        for table in ("spooled_parts", "spooled_uploads", "leases"):
            database.execute(f"DROP TABLE {table}")
        database.execute("DROP INDEX ix_jobs_worker")
        for column in ("worker_id", "n_deaths"):
            database.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE '%_suspect'"
        for (trigger,) in database.execute(query).fetchall():
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("DROP TABLE suspects")
        database.execute("UPDATE alembic_version SET version_num = '0007'")
        database.commit()


def make_0006(folder: Path) -> None:
    """Take away what versions 0007 and 0008 added: each revision has all of its entries."""
    make_0007(folder)
    with closing(sqlite3.connect(folder / "data" / DATABASE)) as database:
        for table, key, owner in (
            ("entries", "revision_id", "revisions"),
            ("dropped_entries", "dropped_id", "dropped_revisions"),
        ):
            names = {"table": table, "key": key, "owner": owner}
            database.execute(_ENTRIES.format(**names))
            database.execute(_COPY.format(**names))
            database.execute(f"CREATE INDEX ix_{table}_file_id ON {table} (file_id)")
            database.execute(f"DROP INDEX ix_{owner}_tree_id")
            database.execute(f"ALTER TABLE {owner} DROP COLUMN tree_id")
        for table in ("tree_entries", "tree_links", "tree_nodes"):
            database.execute(f"DROP TABLE {table}")
        database.execute("DROP INDEX ix_files_not_ingested")
        database.execute("UPDATE alembic_version SET version_num = '0006'")
        database.commit()

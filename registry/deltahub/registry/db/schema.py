"""The schema version of the database: upgrades to this release's version, never downgrades.

A version has four digits, and a letter where a release of the same digits may go on with it: 0011a
only adds to 0011. So servers and workers are replaced one by one, beside others that still run. A
version of other digits needs all of them stopped.
"""

from functools import cache
from importlib.resources import files
from typing import Final

from sqlalchemy import Connection, inspect, text

from deltahub.registry.db.opening.migration_lock import migration_lock
from deltahub.registry.db.opening.running import refuse_while_running
from deltahub.registry.db.session import Database
from deltahub.registry.db.tables import comparisons as comparisons
from deltahub.registry.db.tables import jobs as jobs
from deltahub.registry.db.tables import leases as leases
from deltahub.registry.db.tables import lists as lists
from deltahub.registry.db.tables import logins as logins
from deltahub.registry.db.tables import quotas as quotas
from deltahub.registry.db.tables import retention as retention
from deltahub.registry.db.tables import scrub as scrub
from deltahub.registry.db.tables import spool as spool
from deltahub.registry.db.tables import stores as stores
from deltahub.registry.db.tables import suspects as suspects
from deltahub.registry.db.tables import trees as trees
from deltahub.registry.errors import DatabaseDamaged, SchemaTooNew

_MIGRATIONS: Final = files("deltahub.migrations")
_DIGITS: Final = 4


def upgrade(database: Database) -> str | None:
    """Apply missing migrations, in one transaction if the database supports it.

    Returns the version before; None if the database had no tables. SchemaTooNew if a newer release
    wrote it, and this one cannot go on with that. Unavailable if other processes of the hub run
    that could not. On SQLite the caller holds a lock that keeps other processes from upgrading at
    the same time. On PostgreSQL they wait here; Unavailable if that takes too long.
    """
    with database.errors_translated():
        with database.read_engine.connect() as connection:
            version = _known_version(connection)
        if serves(version):
            return version
        with migration_lock(database), database.write_engine.connect() as connection:
            version = _known_version(connection)  # again: another process may have migrated it
            if not serves(version):
                if version is not None and not _is_same_series(version):
                    refuse_while_running(connection, version, head())
                migrate(connection)
                connection.commit()
            return version


def migrate(connection: Connection) -> None:
    """Apply missing migrations in the connection's transaction, which the caller commits."""
    # Alembic is loaded only to migrate: its import takes a fifth of the start of a process.
    from alembic import command
    from alembic.config import Config

    config = Config()
    # The configuration parser of alembic expands % in values.
    folder = str(_MIGRATIONS).replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


class SchemaTooOld(Exception):
    """An older release wrote the database, and the command may not upgrade it."""

    code = "schema_too_old"


def require_head(database: Database) -> None:
    """SchemaTooNew or SchemaTooOld if another release wrote the database; DataLost without one."""
    with database.errors_translated(), database.read_engine.connect() as connection:
        version = _known_version(connection)
    if version is None:
        raise DatabaseDamaged(
            "the database has no tables: if this folder has held models, restore the database from "
            "a backup; a new hub gets its tables by `deltahub serve`"
        )
    if not serves(version):
        raise SchemaTooOld(
            f"the database has schema version {version}, and this release reads version {head()}: "
            "upgrade it with `deltahub db upgrade`, or run the command of the release that wrote it"
        )


def current(database: Database) -> str | None:
    """The schema version of the database; None before the first migration."""
    with database.read_engine.connect() as connection:
        return version_of(connection)


def head() -> str:
    """The schema version of this release."""
    return max(_versions())


def serves(version: str | None) -> bool:
    """Whether this release runs on a database of this version: its own, or one that adds to it."""
    return version is not None and version >= head() and _is_same_series(version)


def _is_same_series(version: str) -> bool:
    return version[:_DIGITS] == head()[:_DIGITS]


@cache
def _versions() -> frozenset[str]:
    """The schema versions that this release knows: its migrations are files VERSION_TITLE.py.

    Each migration goes on from the version before, in the order of their names.
    """
    names = (path.name for path in (_MIGRATIONS / "versions").iterdir())
    return frozenset(name.partition("_")[0] for name in names if name.endswith(".py"))


def version_of(connection: Connection) -> str | None:
    """The schema version, from the table that alembic keeps; None before the first migration."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


def _known_version(connection: Connection) -> str | None:
    """The same; SchemaTooNew if this release does not know it and cannot go on with it."""
    version = version_of(connection)
    if version is not None and version not in _versions() and not serves(version):
        raise SchemaTooNew(
            f"the database has schema version {version}, which this release "
            f"(schema version {head()}) does not know; "
            "start the release that wrote it, or a newer one"
        )
    return version

"""The schema version of the database: upgrades to this release's version, never downgrades."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from deltahub.registry.db.session import Database
from deltahub.registry.db.tables import scrub as scrub
from deltahub.registry.db.tables import stores as stores
from deltahub.registry.errors import DatabaseDamaged, SchemaTooNew


def upgrade(database: Database) -> None:
    """Apply missing migrations, in one transaction if the database supports it.

    SchemaTooNew if a newer release wrote the database. The caller holds a lock that keeps other
    processes from upgrading at the same time.
    """
    config = _config()
    with database.errors_translated(), database.write_engine.connect() as connection:
        _refuse_newer(connection, ScriptDirectory.from_config(config))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()


class SchemaTooOld(Exception):
    """An older release wrote the database, and the command may not upgrade it."""

    code = "schema_too_old"


def require_head(database: Database) -> None:
    """SchemaTooNew or SchemaTooOld if another release wrote the database; DataLost without one."""
    with database.errors_translated(), database.read_engine.connect() as connection:
        _refuse_newer(connection, ScriptDirectory.from_config(_config()))
        version = MigrationContext.configure(connection).get_current_revision()
    if version is None:
        raise DatabaseDamaged(
            "the database has no tables: if this folder has held models, restore the database from "
            "a backup; a new hub gets its tables by `deltahub serve`"
        )
    if version != head():
        raise SchemaTooOld(
            f"the database has schema version {version}, and this release reads version {head()}: "
            "start `deltahub serve` once, which upgrades the database, or run the command of the "
            "release that wrote it"
        )


def current(database: Database) -> str | None:
    """The schema version of the database; None before the first migration."""
    with database.read_engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head() -> str:
    """The schema version of this release."""
    version = ScriptDirectory.from_config(_config()).get_current_head()
    assert version is not None, "the package holds its migrations"
    return version


def _refuse_newer(connection: Connection, scripts: ScriptDirectory) -> None:
    known = {script.revision for script in scripts.walk_revisions()}
    for version in MigrationContext.configure(connection).get_current_heads():
        if version not in known:
            raise SchemaTooNew(
                f"the database has schema version {version}, which this release "
                f"(schema version {scripts.get_current_head()}) does not know; "
                "start the release that wrote it, or a newer one"
            )


def _config() -> Config:
    config = Config()
    # The configuration parser of alembic expands % in values.
    config.set_main_option("script_location", str(files("deltahub.migrations")).replace("%", "%%"))
    return config

"""`deltahub db`, for operators: the hub's database, its schema, and a move to PostgreSQL."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from deltahub.registry.commands.errors import CannotRun, InUse, Refused
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.commands.progress import CountLine
from deltahub.registry.data_folder import (
    SERVE_LOCK,
    WORKER_LOCK,
    DataFolderBusy,
    NoHub,
    check_free,
    require_hub,
)
from deltahub.registry.db import schema
from deltahub.registry.db.session import Database
from deltahub.registry.errors import RegistryError
from deltahub.registry.maintenance.database_move.refused import DatabaseMoveRefused
from deltahub.registry.maintenance.database_move.run import Moved, move, rehearse
from deltahub.registry.maintenance.database_move.show import ShownDatabase, show, without_password
from deltahub.registry.maintenance.database_move.source import InUseByAnother
from deltahub.registry.registry import schema_lock
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import StoreError

_FAILURES = (NoHub, schema.SchemaTooOld, RegistryError, StoreError, SQLAlchemyError, OSError)


@click.group()
def db() -> None:
    """Show the hub's database, upgrade its schema, or move it to PostgreSQL."""


@db.command("show")
@data_dir_option
@json_option
def show_database(data_dir: Path, as_json: bool) -> None:
    """Show where the database is, its schema version, and how many rows its main tables have.

    Changes nothing. Exit status: 0 shown; 2 could not run.
    """
    with _errors_shown():
        settings = _settings_of_hub(data_dir)
        with closing(Database(settings.effective_database_url, is_read_only=True)) as database:
            shown = show(database)
    if as_json:
        click.echo(json.dumps(asdict(shown), indent=2))
    else:
        click.echo("\n".join(_shown_lines(shown)))


@db.command("upgrade")
@data_dir_option
@json_option
def upgrade(data_dir: Path, as_json: bool) -> None:
    """Bring the database to the schema of this release, as a start of the hub does.

    Several may run at once, also beside hubs that start: the later ones wait, and find it done.

    Exit status: 0 it has this release's schema; 2 could not run; 3 a hub or a worker runs on the
    data folder.
    """
    with _errors_shown():
        before = _upgraded(Settings(data_dir=data_dir))
    after = schema.head()
    if as_json:
        click.echo(json.dumps({"before": before, "after": after}))
    elif before == after:
        click.echo(f"the database has schema version {after}: nothing to do")
    elif before is None:
        click.echo(f"made the tables of schema version {after} in an empty database")
    else:
        click.echo(f"upgraded the database from schema version {before} to {after}")


def _upgraded(settings: Settings) -> str | None:
    """Upgrade the schema; the version before."""
    data_dir = settings.data_dir.resolve()
    with ExitStack() as stack:
        # A PostgreSQL database may be made ready before there is a data folder.
        if settings.database_url is None or data_dir.exists():
            require_hub(settings)
            stack.enter_context(schema_lock(data_dir))
        database = stack.enter_context(closing(Database(settings.effective_database_url)))
        if schema.current(database) not in (None, schema.head()):
            for lock in (SERVE_LOCK, WORKER_LOCK):
                check_free(data_dir, lock)
        return schema.upgrade(database)


@db.command("move")
@click.option(
    "--to", "url", required=True, metavar="URL",
    help="An empty PostgreSQL database: postgresql+psycopg://USER@HOST/NAME.",
)  # fmt: skip
@click.option(
    "--dry-run", "is_rehearsed", is_flag=True,
    help="Check both databases and every row, and copy nothing. The hub may serve meanwhile.",
)  # fmt: skip
@data_dir_option
@json_option
def move_database(url: str, is_rehearsed: bool, data_dir: Path, as_json: bool) -> None:
    """Copy the hub's SQLite database to an empty PostgreSQL database, and prove the copy.

    Stop the hub first. If the move fails or is killed, the target is empty and the hub as it was.

    Exit status: 0 done; 1 refused; 2 could not run; 3 a hub, a worker or another command uses the
    database.
    """
    progress = CountLine()
    with _errors_shown():
        settings = _settings_of_hub(data_dir)
        try:
            moved = (rehearse if is_rehearsed else move)(settings, url, progress)
        finally:
            progress.end()
    if as_json:
        click.echo(json.dumps(_moved_data(moved), indent=2))
    else:
        click.echo("\n".join(_moved_lines(moved, url)))


def _settings_of_hub(data_dir: Path) -> Settings:
    settings = Settings(data_dir=data_dir)
    require_hub(settings)
    return settings


@contextmanager
def _errors_shown() -> Iterator[None]:
    try:
        yield
    except DatabaseMoveRefused as exc:
        raise Refused(exc) from exc
    except DataFolderBusy as exc:
        raise InUse(
            f"{exc.place} is in use ({exc.holder}): stop the hub, or wait for the"
            " end of that command"
        ) from exc
    except InUseByAnother as exc:
        raise InUse(str(exc)) from exc
    except DBAPIError as exc:
        # Without SQLAlchemy's text, which has the statement and many lines.
        raise CannotRun(OSError(f"the database refused: {exc.orig}")) from exc
    except _FAILURES as exc:
        raise CannotRun(exc) from exc


def _shown_lines(shown: ShownDatabase) -> Iterator[str]:
    yield f"{shown.kind}: {shown.place}"
    if shown.version is None:
        yield "it has no tables yet"
    elif shown.version == shown.release_version:
        yield f"schema version {shown.version}, that of this release"
    else:
        yield f"schema version {shown.version}; that of this release is {shown.release_version}"
    for table, n_rows in shown.rows.items():
        yield f"{table}: {n_rows:,} rows"


def _moved_lines(moved: Moved, url: str) -> Iterator[str]:
    size = f"{moved.n_rows:,} rows of {len(moved.rows)} tables"
    if moved.old_file is None:
        yield f"checked {size}: all of them can be moved, and nothing was copied"
        return
    verb = "compared" if moved.was_there else "copied and compared"
    yield f"{verb} {size}: both databases hold the same"
    yield f"the old database is now {moved.old_file}; no hub opens it"
    yield (
        f"set DELTAHUB_DATABASE_URL={without_password(url)} (with your password in place of *** if"
        " it has one) for the hub, its worker and every command, and start the hub"
    )


def _moved_data(moved: Moved) -> dict[str, object]:
    return {
        "rows": moved.rows,
        "old_file": None if moved.old_file is None else str(moved.old_file),
        "was_there": moved.was_there,
    }

"""What a hub's database is, and how many rows its main tables have."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, make_url, select

from deltahub.registry.db import schema
from deltahub.registry.db.models import File, Pack, Repository, Revision, Tensor, User
from deltahub.registry.db.session import Database
from deltahub.registry.db.tables.jobs import Job

_MAIN_TABLES: Final = (User, Repository, Revision, File, Tensor, Pack, Job)


@dataclass(frozen=True)
class ShownDatabase:
    """kind: of SQLite or PostgreSQL. place: without a password. version: None without tables."""

    kind: str
    place: str
    version: str | None
    release_version: str
    rows: dict[str, int]


def show(database: Database) -> ShownDatabase:
    """Read the database, whatever release wrote it; registry errors."""
    place = str(database.path) if database.is_sqlite else without_password(database.url)
    with database.errors_translated():
        version = schema.current(database)
    rows = {}
    if version is not None:
        with database.read() as session:
            for table in _MAIN_TABLES:
                count = session.scalar(select(func.count()).select_from(table))
                rows[table.__tablename__] = count or 0
    kind = "SQLite" if database.is_sqlite else "PostgreSQL"
    return ShownDatabase(kind, place, version, schema.head(), rows)


def without_password(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)

"""The SQLite file of a hub that was moved to PostgreSQL is renamed, so that no hub opens it."""

from pathlib import Path

from sqlalchemy import make_url

from deltahub.registry.errors import Unavailable


def sqlite_path(url: str) -> Path | None:
    """The file of a database's URL; None if it is not SQLite's."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database)


def name_after_move(path: Path) -> Path:
    """The name that `deltahub db move` gives to a SQLite file when its rows are in PostgreSQL."""
    return path.with_name(f"{path.name}.moved")


def refuse_moved(url: str) -> None:
    """Unavailable if `deltahub db move` renamed the file of this URL. Otherwise a hub that starts
    without DELTAHUB_DATABASE_URL would make a new, empty database there.
    """
    path = sqlite_path(url)
    if path is None or path.exists() or not name_after_move(path).exists():
        return
    raise Unavailable(
        f"this hub was moved to PostgreSQL, and {name_after_move(path)} is its old database: set"
        " DELTAHUB_DATABASE_URL to the URL of the PostgreSQL database. To go back to the old one,"
        f" without what was pushed since the move, rename it to {path.name}"
    )

"""Why a database is not moved."""


class DatabaseMoveRefused(Exception):
    """The database cannot be moved there, or not as it is. Nothing was changed."""

    code = "database_move_refused"

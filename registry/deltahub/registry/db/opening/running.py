"""Which processes run on a database that machines share, before its schema changes under them."""

from typing import Final

from sqlalchemy import Connection, inspect, text

from deltahub.registry.errors import Unavailable

# Processes renew their leases every second or two, by the clock of the database.
_FRESH: Final = text(
    "SELECT command, pid, host FROM leases"
    " WHERE renewed_at > clock_timestamp() - interval '10 seconds' ORDER BY begun_at"
)


def refuse_while_running(connection: Connection, before: str, after: str) -> None:
    """Unavailable if processes of the hub run: those of before could not go on after."""
    if connection.dialect.name == "sqlite" or not inspect(connection).has_table("leases"):
        return
    running = [f"`{row.command}`, process {row.pid} on {row.host}" for row in
               connection.execute(_FRESH)]  # fmt: skip
    if running:
        raise Unavailable(
            f"processes of an older release run on this database ({'; '.join(running)}), and cannot"
            f" go on when its schema version goes from {before} to {after}: stop them first"
        )

"""All tables that administrators see, by their names."""

from typing import Final

from deltahub.server.tables.access import AUDIT, ORGANIZATIONS, SESSIONS, TOKENS, USERS
from deltahub.server.tables.jobs import JOBS
from deltahub.server.tables.storage import DROPPED, FINDINGS, NAMESPACES, PACKS
from deltahub.server.tables.table import Table

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        JOBS, USERS, ORGANIZATIONS, TOKENS, SESSIONS, AUDIT,
        NAMESPACES, PACKS, FINDINGS, DROPPED,
    )
}  # fmt: skip

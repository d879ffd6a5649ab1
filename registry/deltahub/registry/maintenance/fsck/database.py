"""Checks the database by itself, before its rows are compared with anything.

Damage here is why later checks may fail, so fsck reports it first, and afterwards whatever it can
still find.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from deltahub.registry.db import integrity, schema
from deltahub.registry.db.session import Database
from deltahub.registry.errors import DataLost
from deltahub.registry.maintenance.fsck.findings import Finding, Findings

_DAMAGE: Final = ("database_damaged", "row_undecodable", "check_stopped")
_WAY_OUT: Final = "restore the database from a backup, or ask for help before anything is deleted"


def stage_name(database: Database) -> str:
    """What fsck says before it checks the database."""
    if database.is_sqlite:
        return "the database"
    return (
        "the database (PostgreSQL's pages and indexes are not checked here; its administrator "
        "runs `pg_amcheck --heapallindexed`)"
    )


def check_file(database: Database) -> Findings:
    """Check pages and indexes of a SQLite file."""
    damage = integrity.file_damage(database)
    for sentence in damage:
        yield Finding("database_damaged", "database", f"the database: {sentence}: {_WAY_OUT}")
    if len(damage) == integrity.MAX_SHOWN:
        text = f"the database: there may be more than these {len(damage)} findings"
        yield Finding("database_damaged", "database", text)


def check_schema(database: Database) -> Findings:
    """SchemaTooNew or SchemaTooOld if another release wrote the database; no findings."""
    schema.require_head(database)
    yield from ()


def check_values(database: Database) -> Findings:
    """Check references and values of a SQLite file with the schema of this release."""
    for table, target, count, first in integrity.dangling_references(database):
        text = f"{count} rows of {table} refer to rows of {target} that are missing: row {first}"
        yield Finding("row_reference", table, text if count == 1 else f"{text} is the first")
    for table, row_id, column, fault in integrity.undecodable_values(database):
        text = f"row {row_id} of {table}: {column} cannot be read: {fault}: {_WAY_OUT}"
        yield Finding("row_undecodable", f"{table} {row_id}", text)


class CheckRunner:
    """Runs checks one after another. Damage of the database stops one check, not those after it."""

    def __init__(self, before: Iterable[Finding] = ()) -> None:
        """before: what a run found that this one goes on from."""
        self.found_damage = any(finding.code in _DAMAGE for finding in before)

    def run(self, stage: str, check: Callable[[], Findings]) -> Iterator[Finding]:
        """The findings of a check; if damage ends it, the last finding says so."""
        try:
            for finding in check():
                self.found_damage |= finding.code in _DAMAGE
                yield finding
        except DataLost as exc:
            yield self._stopped(stage, integrity.reason(exc))
        except Exception as exc:
            # Without damage this is a fault of fsck or of its folder. With it, a value that no
            # release wrote has most likely led the check astray.
            if not self.found_damage:
                raise
            yield self._stopped(stage, f"{type(exc).__name__}: {exc}")

    def _stopped(self, stage: str, why: str) -> Finding:
        code = "check_stopped" if self.found_damage else "database_damaged"
        self.found_damage = True
        return Finding(code, stage, f"checking {stage} stopped, so more may be wrong there: {why}")

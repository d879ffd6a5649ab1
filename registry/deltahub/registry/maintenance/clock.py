"""Dates in the future, which this machine's clock wrote while it was ahead, and their repair.

Such a date keeps something until it comes: garbage, a hold, a token, a job's next attempt. Dates of
history (revisions, the audit log) stay as they are, because a commit's name is computed from its
date.
"""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

from sqlalchemy import Column, CursorResult, Table, func, null, select, update
from sqlalchemy.orm import Session

from deltahub.registry.db.columns import CLOCK_SLACK as CLOCK_SLACK
from deltahub.registry.db.columns import UtcDateTime
from deltahub.registry.db.models import File, Hold, Landing, Pack, Tensor, Token, Xorb, utc_now
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.tables.comparisons import PooledInputs
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.db.tables.spool import SpooledUpload
from deltahub.registry.db.tables.stores import DeletionHold
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings

# Tables whose dates decide what is kept or done.
_DECIDING: Final = (
    Pack, PackCopy, Landing, File, Tensor, Xorb, Hold, Job, DeletionHold, SpooledUpload,
    PooledInputs,
)  # fmt: skip
TABLES: Final = tuple(cast(Table, model.__table__) for model in _DECIDING)
# Columns that hold the time at which they were written.
WRITTEN: Final = frozenset(
    {"created_at", "ingested_at", "condemned_at", "started_at", "finished_at", "turn_at"}
    | {"failing_since", "deferred_at"}
)
# Columns that hold the end of a promise.
ENDS: Final = frozenset({"expires_at", "promised_until"})
# Columns that hold when a job may run, or a lease ends, at most about an hour ahead.
DUE: Final = frozenset({"retry_at", "due_at", "receiving_until"})
_LONGEST_DELAY: Final = timedelta(days=1)


def dates_ahead(session: Session, now: datetime) -> Iterator[tuple[str, datetime]]:
    """(table, latest date) of tables with rows that were written in the future."""
    for table in TABLES:
        newest = [
            found
            for column in _time_columns(table)
            if column.name in WRITTEN
            and (found := session.scalar(select(func.max(column)))) is not None
        ]
        if newest and max(newest) > now + CLOCK_SLACK:
            yield table.name, max(newest)


def count_ahead(reg: Registry) -> int:
    """The number of dates that set_to_now() would change."""
    now = utc_now()
    with reg.db.read() as session:
        n_dates = len(session.scalars(_tokens_ahead(now)).all())
        for column, limit, _ in _changes(reg.settings, now):
            n_dates += session.scalar(select(func.count()).where(column > limit)) or 0
    return n_dates + len(_files_ahead(reg, now))


def set_to_now(reg: Registry) -> int:
    """Set all dates in the future to now, as if the rows were made now; how many there were.

    Everything is then kept for as long as something that was made now. Promises end no later than
    those that are made now, and a token lives as long as it was made for.
    """
    now = utc_now()
    n_dates = 0
    with reg.db.write() as session:
        n_dates += _renew_tokens(session, now)
        for column, limit, value in _changes(reg.settings, now):
            change = update(column.table).where(column > limit).values({column: value})
            n_dates += cast(CursorResult[Any], session.execute(change)).rowcount
    for path in _files_ahead(reg, now):
        os.utime(path, (now.timestamp(), now.timestamp()))
        n_dates += 1
    return n_dates


def _changes(settings: Settings, now: datetime) -> Iterator[tuple[Column[Any], datetime, Any]]:
    """(column, latest plausible date, new value of later dates)."""
    promise = timedelta(seconds=max(settings.hold_ttl_s, settings.upload_ttl_s))
    for table in TABLES:
        for column in _time_columns(table):
            if column.name in ENDS:
                yield column, now + promise + CLOCK_SLACK, now + promise
            elif column.name in DUE:
                yield column, now + _LONGEST_DELAY, now
            elif column.name == "started_at":
                # The job may be older than all packs that it writes: gc must take it for that.
                yield column, now + CLOCK_SLACK, null()
            else:
                yield column, now + CLOCK_SLACK, now


def _time_columns(table: Table) -> Iterator[Column[Any]]:
    return (column for column in table.columns if isinstance(column.type, UtcDateTime))


def _tokens_ahead(now: datetime) -> Any:
    return select(Token).where(Token.created_at > now + CLOCK_SLACK)


def _renew_tokens(session: WriteSession, now: datetime) -> int:
    tokens = session.scalars(_tokens_ahead(now)).all()
    for token in tokens:
        if token.expires_at is not None:
            token.expires_at = now + (token.expires_at - token.created_at)
        token.created_at = now
    return len(tokens)


def _files_ahead(reg: Registry, now: datetime) -> list[Path]:
    """Local files that gc deletes by their age."""
    latest = (now + CLOCK_SLACK).timestamp()
    folders = [folder for folder in (reg.scratch, reg.spool_folder) if folder.is_dir()]
    found = []
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        try:
            if path.stat().st_mtime > latest:
                found.append(path)
        except FileNotFoundError:
            continue  # its owner has just removed it
    return found

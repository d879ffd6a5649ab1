"""Stores comparisons that jobs have made, and drops those that nobody has used for long."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import zstandard
from sqlalchemy import delete, func, select

from deltahub.registry.db.models import Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.comparisons import Comparison, ComparisonPart
from deltahub.registry.errors import Conflict
from deltahub.registry.packs.holds import release_job
from deltahub.registry.registry import Registry
from deltahub.registry.results.asked import granted_in
from deltahub.registry.results.comparisons.pair import Pair, pair_of
from deltahub.registry.results.comparisons.read import row_of

# All comparisons of a hub together: those that were not used for the longest time go first.
MAX_COMPARISONS: Final = 1000
MAX_BYTES: Final = 256 << 20
_LEVEL: Final = 9


@dataclass(frozen=True)
class Made:
    """What a job has found out. tensors: each names the number of the part that has its details.

    parts: as `packed` makes them, in order of their numbers.
    """

    totals: Mapping[str, Any]
    cells: Sequence[Mapping[str, Any]]
    tensors: Sequence[Mapping[str, Any]]
    parts: Sequence[bytes]


def packed(value: Any) -> bytes:
    """Plain JSON, compressed."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return zstandard.ZstdCompressor(level=_LEVEL).compress(text.encode())


def known(reg: Registry, job_id: str) -> str | None:
    """The id of the comparison that the job would make, if there is one."""
    with reg.db.write_beside() as session:
        grant = granted_in(session, reg.settings, job_id)
        row = row_of(session, grant.caller, _pair(session, grant.revisions))
        return None if row is None else row.id


def store(reg: Registry, job_id: str, made: Made) -> str:
    """Store the job's comparison in place of an older one of the same weights; its id.

    The errors of `asked.granted`; Conflict if the weights have changed since the job read them.
    """
    totals = packed({"totals": made.totals, "cells": made.cells})
    tensors = packed(made.tensors)
    size = len(totals) + len(tensors) + sum(map(len, made.parts))
    with reg.db.write() as session:
        grant = granted_in(session, reg.settings, job_id)
        pair = _pair(session, grant.revisions)
        if pair.key is None:
            raise Conflict("weights of a model were lost while they were compared: ask again")
        session.execute(delete(Comparison).where(Comparison.key == pair.key))
        row = Comparison(
            id=secrets.token_hex(16),
            key=pair.key,
            first_id=pair.first.revision_id,
            second_id=pair.second.revision_id,
            totals=totals,
            tensors=tensors,
            size=size,
        )
        session.add(row)
        session.flush()
        for number, data in enumerate(made.parts):
            session.add(ComparisonPart(comparison_id=row.id, number=number, data=data))
        release_job(session, job_id)
        _drop_unused(session, row.id)
        return row.id


def _pair(session: ReadSession, revisions: Sequence[int]) -> Pair:
    return pair_of(session, [session.get_one(Revision, row) for row in revisions])


def _drop_unused(session: WriteSession, kept: str) -> None:
    query = select(func.count(), func.sum(Comparison.size))
    n, size = session.execute(query).one()
    oldest = select(Comparison.id, Comparison.size).where(Comparison.id != kept)
    for comparison_id, its_size in session.execute(oldest.order_by(Comparison.used_at)).all():
        if n <= MAX_COMPARISONS and size <= MAX_BYTES:
            return
        session.execute(delete(Comparison).where(Comparison.id == comparison_id))
        n, size = n - 1, size - its_size

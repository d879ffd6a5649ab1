"""Runs garbage collection, and finds what is wrong."""

import sqlite3
from contextlib import closing
from datetime import timedelta

from sqlalchemy import func, select, update

from deltahub.registry import Registry
from deltahub.registry.db.models import File, Hold, Landing, Pack, Tensor, utc_now
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.apply import Outcome, apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc


def collect(
    reg: Registry, *, lease_s: float = 0, grace_s: float = 0, revision_grace_s: float | None = None
) -> Outcome:
    plan = plan_gc(reg, lease_s=lease_s, grace_s=grace_s, revision_grace_s=revision_grace_s)
    return apply_gc(reg, plan)


def count(reg: Registry, table: type) -> int:
    with reg.db.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def n_objects(reg: Registry) -> int:
    return len(list(reg.store.list("")))


def is_clean(reg: Registry) -> bool:
    return list(fsck(reg, read_data=True)) == []


def age_everything(reg: Registry, days: float) -> None:
    """Make all rows older by this much."""
    past = utc_now() - timedelta(days=days)
    with reg.db.write() as session:
        for table in (File, Tensor, Pack, Landing):
            session.execute(update(table).values(created_at=past))
        session.execute(update(File).values(ingested_at=past))
        session.execute(update(Landing).values(expires_at=past))
        session.execute(update(Hold).values(expires_at=past))
        session.execute(
            update(Pack).where(Pack.condemned_at.is_not(None)).values(condemned_at=past)
        )


def codes(reg: Registry, *, read_data: bool = False) -> set[str]:
    return {finding.code for finding in fsck(reg, read_data=read_data)}


def sql(reg: Registry, *statements: str) -> None:
    """Change rows with foreign keys off."""
    with closing(sqlite3.connect(reg.data_dir / "deltahub.sqlite3")) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            assert connection.execute(statement).rowcount != 0, statement
        connection.commit()

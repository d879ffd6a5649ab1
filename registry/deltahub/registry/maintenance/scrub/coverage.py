"""How much of the store has been proved lately, and what was found."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select

from deltahub.registry.db.columns import UtcDateTime
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.tables.scrub import Proof
from deltahub.registry.maintenance.scrub import due
from deltahub.registry.registry import Registry


@dataclass(frozen=True)
class Coverage:
    """Objects of the store, those whose last proof is older than DELTAHUB_SCRUB_DAYS, and when
    anything was last proved.
    """

    n_objects: int
    n_bytes: int
    overdue_objects: int
    overdue_bytes: int
    last_checked_at: datetime | None
    scrub_days: float  # 0: the hub is never scrubbed

    @property
    def share(self) -> float:
        """Of the bytes, those that were written or proved in time."""
        return 1.0 if not self.n_bytes else 1 - self.overdue_bytes / self.n_bytes


def coverage(reg: Registry) -> Coverage:
    """The coverage now. Reads a row for each object: ask for it now and then."""
    days = reg.settings.scrub_days
    with reg.db.read() as session:
        n_objects, n_bytes = due.count(session)
        overdue = (0, 0)
        if days:
            overdue = due.count(session, utc_now() - timedelta(days=days))
        newest = func.max(Proof.checked_at, type_=UtcDateTime())
        last = session.scalar(select(newest).where(Proof.kind.in_(due.KINDS)))
    return Coverage(n_objects, n_bytes, *overdue, last, days)

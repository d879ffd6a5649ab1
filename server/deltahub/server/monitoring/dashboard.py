"""What the pages of administrators show of the whole hub: made now and then, in threads.

Each report costs queries that grow with the hub, so that a page shows the last one instead of
asking again. Pages say how old it is.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from deltahub.registry.maintenance.gc.plan import Plan, plan_gc
from deltahub.registry.maintenance.scrub.coverage import Coverage, coverage
from deltahub.registry.reports.codec_totals import CodecCount, CodecTotal
from deltahub.registry.reports.families import Family, largest_families
from deltahub.registry.reports.history import Moment, read_history
from deltahub.registry.reports.hub_totals import HubTotals, count_failed_jobs
from deltahub.registry.reports.lists.pages import Asked
from deltahub.registry.reports.lists.storage import NamespaceRow, list_namespaces
from deltahub.registry.upgrades.shown import count_open
from deltahub.server.hub import Hub
from deltahub.server.monitoring.attention import NEAR_LIMIT, Attention, Known, find
from deltahub.server.monitoring.of_hub import Condition, codec_name
from deltahub.server.monitoring.refreshed import Refreshed

# How old a report may be, and how long a page waits for a new one.
_AGE_S: Final = 300.0
_WAIT_S: Final = 2.0
# Namespaces that are looked through for those near a limit, those that store most first.
_MOST_NAMESPACES: Final = 1000
_WEEK: Final = timedelta(days=7)


@dataclass(frozen=True)
class NamedCodec:
    """The frames of one codec, by its name."""

    codec: str
    total: CodecTotal

    @property
    def saved_bytes(self) -> int:
        return self.total.decoded_bytes - self.total.stored_bytes


@dataclass(frozen=True)
class Overview:
    """The state of a hub. None: it could not be found out in time, or is being counted."""

    attention: list[Attention]
    condition: Condition | None
    totals: HubTotals | None
    codecs: list[NamedCodec] | None
    families: list[Family] | None
    coverage: Coverage | None


class Dashboard:
    """The reports of one server. Safe to share between threads."""

    def __init__(
        self,
        hub: Hub,
        condition: Refreshed[Condition],
        totals: Refreshed[HubTotals],
        codecs: CodecCount,
    ) -> None:
        self._hub = hub
        self._condition = condition
        self._totals = totals
        self._codecs = codecs
        reg = hub.registry
        self._families = Refreshed(lambda: largest_families(reg), _AGE_S)
        self._coverage = Refreshed(lambda: coverage(reg), _AGE_S)
        self._plan = Refreshed(lambda: plan_gc(reg), _AGE_S)
        self._near_limits = Refreshed(self._find_near_limits, _AGE_S)

    def overview(self) -> Overview:
        """Everything, and what needs attention. Waits for some seconds if queries are slow."""
        condition, totals = self.condition(), self.totals()
        known = Known(
            condition,
            totals,
            self.coverage(),
            self.plan(),
            self._near_limits.get(_WAIT_S),
            count_failed_jobs(self._hub.registry, datetime.now(UTC) - _WEEK),
            count_open(self._hub.registry),
        )
        return Overview(
            find(known), condition, totals, self.codecs(), self._families.get(_WAIT_S),
            known.coverage,
        )  # fmt: skip

    def condition(self) -> Condition | None:
        return self._condition.get(_WAIT_S)

    def totals(self) -> HubTotals | None:
        return self._totals.get(_WAIT_S)

    def codecs(self) -> list[NamedCodec] | None:
        """What each codec saves, the most first; None until all frames were counted once."""
        if not self._codecs.is_known:
            return None
        named = [NamedCodec(codec_name(n), total) for n, total in self._codecs.totals.items()]
        return sorted(named, key=lambda each: -each.saved_bytes)

    def coverage(self) -> Coverage | None:
        return self._coverage.get(_WAIT_S)

    def plan(self) -> Plan | None:
        """The plan of a garbage collection, some minutes old at most."""
        return self._plan.get(_WAIT_S)

    def history(self, days: int) -> list[Moment]:
        """The moments of so many days, oldest first."""
        return read_history(self._hub.registry, timedelta(days=days))

    def _find_near_limits(self) -> list[NamespaceRow]:
        page = list_namespaces(self._hub.registry, Asked("-stored", None, _MOST_NAMESPACES))
        return [row for row in page.items if (row.share or 0) >= NEAR_LIMIT]

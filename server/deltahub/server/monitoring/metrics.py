"""All metrics of a hub, as a scrape gets them."""

import logging
import shutil
from collections.abc import Iterable, Iterator
from typing import Final

import anyio
import anyio.to_thread
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from deltahub.registry.jobs.worker_measures import read_measures
from deltahub.registry.leases.signs_of_life import worker_seen_at
from deltahub.registry.monitoring.families import gauge
from deltahub.registry.monitoring.of_processes import process_families
from deltahub.registry.reports.codec_totals import CodecCount
from deltahub.registry.reports.hub_totals import HubTotals, read_totals
from deltahub.server.hub import Hub
from deltahub.server.monitoring.dashboard import Dashboard
from deltahub.server.monitoring.of_hub import (
    Condition,
    codec_families,
    condition_families,
    total_families,
)
from deltahub.server.monitoring.of_server import Watched, server_families
from deltahub.server.monitoring.readiness import Readiness
from deltahub.server.monitoring.refreshed import Refreshed
from deltahub.server.monitoring.requests import RequestCounts

log = logging.getLogger(__name__)

# How old numbers of the whole hub may be, which cost queries, and those of its parts.
TOTALS_AGE_S: Final = 30.0
CONDITION_AGE_S: Final = 5.0
# Longest wait of a scrape for each of them. Prometheus gives a scrape 10 s.
_WAIT_S: Final = 2.0


class Monitoring(Collector):
    """What one server tells its operators. It has a registry of metrics of its own.

    So several hubs may run in one process, and none shows the numbers of another.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.requests = RequestCounts()
        self.watched = Watched()
        self.readiness = Readiness(hub.health.serving_problems)
        self.codecs = CodecCount(hub.registry)
        self._totals: Refreshed[HubTotals] = Refreshed(
            lambda: read_totals(hub.registry), TOTALS_AGE_S
        )
        self._condition = Refreshed(self._find_condition, CONDITION_AGE_S)
        self.dashboard = Dashboard(hub, self._condition, self._totals, self.codecs)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._thread = anyio.CapacityLimiter(1)

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text, and its media type. accept: the header of the request."""
        encode, media_type = choose_encoder(accept)
        # In a thread: queries and thousands of lines would stop all requests meanwhile.
        text = await anyio.to_thread.run_sync(encode, self._registry, limiter=self._thread)
        return text, media_type

    def describe(self) -> Iterable[Metric]:
        """Nothing: the library would call collect() to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        hub = self._hub
        # First of all, so that the numbers below have the errors that these looks meet.
        condition, totals = self._condition.get(_WAIT_S), self._totals.get(_WAIT_S)
        yield from server_families(hub, self.requests, self.watched)
        numbers = {"server": hub.registry.measures.read()}
        worker = read_measures(hub.registry)
        if worker is not None:
            numbers["worker"] = worker
        yield from process_families(numbers)
        yield from condition_families(condition)
        if totals is not None:
            yield from total_families(totals)
            age_s = self._totals.age_s()
            yield gauge("deltahub_totals_age_seconds", "How old the totals are.", (), age_s)
        if self.codecs.is_known:
            yield from codec_families(self.codecs.totals)

    def _find_condition(self) -> Condition:
        reg = self._hub.registry
        disk = shutil.disk_usage(reg.data_dir)
        problems = tuple(self._hub.health.problems())
        broken = frozenset(problem.part for problem in problems)
        return Condition(broken, disk.free, disk.total, worker_seen_at(reg), problems)

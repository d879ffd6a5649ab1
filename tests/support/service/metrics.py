"""Reads the metrics of a hub as Prometheus does."""

import time
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from support.service.hub import Hub


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def value(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """The sum of all samples of this name that have these labels; 0 without any."""
        wanted = (labels or {}).items()
        return sum(s.value for s in self.samples if s.name == name and wanted <= s.labels.items())


def scrape(hub: Hub) -> Scrape:
    answer = hub.call("GET", "/metrics", token=hub.admin_token)
    assert answer.status == 200, answer.body
    return Scrape(answer.body.decode())


def scrape_with(hub: Hub, name: str, value: float, **labels: str) -> Scrape:
    """The first scrape in which a sample has this value: a request counts once it has ended."""
    deadline = time.monotonic() + 20
    while True:
        found = scrape(hub)
        if found.value(name, labels) == value:
            return found
        assert time.monotonic() < deadline, (name, labels, found.value(name, labels))
        time.sleep(0.05)

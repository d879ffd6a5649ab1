"""The alert rules ask for metrics that a hub exports, with labels that they have."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deltahub.server.monitoring.metrics import Monitoring
from support.service.hub import RunningHub

RULES = Path(__file__).resolve().parents[3] / "docs" / "monitoring" / "alerts.yml"
# Labels that Prometheus adds to each sample of a hub, or that the form of a histogram has.
_ADDED = {"instance", "job", "le"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def labels_of(hub: RunningHub) -> dict[str, set[str]]:
    """Name of a sample -> its labels, for all families of a hub that has all of them."""
    monitoring = Monitoring(hub.server.monitoring._hub)
    monitoring.watched = hub.server.monitoring.watched
    monitoring.codecs.go_on()
    found = {}
    for family in monitoring.collect():
        for suffix in ("", "_total", "_bucket", "_count", "_sum", "_info"):
            labels = getattr(family, "_labelnames", ())
            found[family.name + suffix] = set(labels)
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_what_a_hub_exports(
    rule: dict[str, Any], labels_of: dict[str, set[str]]
) -> None:
    expression = rule["expr"]
    names = set(re.findall(r"\bdeltahub_\w+", expression))
    assert names or re.search(r'up\{job="deltahub(-workers)?"\}', expression)
    assert names <= labels_of.keys()
    known = set().union(*(labels_of[name] for name in names)) | _ADDED
    for name, matchers in re.findall(r"\b(deltahub_\w+)\{([^}]*)\}", expression):
        asked = set(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)\s*\"", matchers))
        assert asked <= labels_of[name] | _ADDED, name
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(re.split(r",\s*", grouped)) <= known
    text = str(rule["annotations"])
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= known
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_no_family_is_missing_from_a_hub_without_events(labels_of: dict[str, set[str]]) -> None:
    wings = ("http", "turns", "store", "database", "job", "jobs", "part", "frames", "repositories")
    for wing in wings:
        assert any(name.startswith(f"deltahub_{wing}") for name in labels_of), wing

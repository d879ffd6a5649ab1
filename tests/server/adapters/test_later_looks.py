"""Adapters that are looked at again: their base came later, or nobody has looked at them yet."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, select

from deltahub.client import Hub
from deltahub.client.errors import EntryNotFound
from deltahub.registry.adapters.inspections import INSPECT
from deltahub.registry.db.tables.comparisons import AdapterReportRow
from deltahub.registry.db.tables.jobs import Job
from support.adapters.place import Place
from support.adapters.tuning import trained_adapter
from support.service.client_process import deltahub


def report_when(place: Place, name: str, is_right: Callable[[dict[str, Any]], bool]) -> Any:
    for _ in range(600):
        report = place.report_of(name)
        if is_right(report):
            return report
        time.sleep(0.1)
    raise AssertionError(report)


def test_a_base_that_comes_later_changes_the_report(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    place.ann.push(tmp_path / "a", "ann/early", base="ann/late")
    report = place.report_of("ann/early")
    assert (report["state"], report["base"]["is_at_hand"]) == ("quarantined", False)
    place.ann.push(place.base, "ann/late")
    report = report_when(place, "ann/early", lambda found: found["base"]["is_at_hand"])
    assert report["state"] == "convertible"
    assert report["base"]["commit"] == place.ann.revision("ann/late").commit


def test_an_adapter_without_a_report_gets_one_when_it_is_asked_for(
    place: Place, tmp_path: Path
) -> None:
    trained_adapter(place.base, tmp_path / "a")
    place.ann.push(tmp_path / "a", "ann/older", base="ann/base")
    before = place.report_of("ann/older")
    # As an older release stored it.
    with place.hub.registry.db.write() as session:
        session.execute(delete(AdapterReportRow))
    with pytest.raises(EntryNotFound, match="again in a moment"):
        place.ann.adapter_report("ann/older")
    deltahub("info", "ann/older", environment=place.environment)  # asks for it, too
    assert place.report_of("ann/older") == before
    with place.hub.registry.db.read() as session:
        n_jobs = select(func.count()).select_from(Job).where(Job.kind == INSPECT)
        assert session.scalar(n_jobs) == 1


def test_a_report_does_not_name_a_base_to_those_who_may_not_read_it(
    place: Place, tmp_path: Path
) -> None:
    place.ann.push(place.base, "ann/hidden", private=True)
    trained_adapter(place.base, tmp_path / "a", r=4)
    config = tmp_path / "a" / "adapter_config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({**told, "base_model_name_or_path": "", "r": 5}))
    (tmp_path / "a" / "README.md").unlink(missing_ok=True)
    place.ann.push(tmp_path / "a", "ann/hidden-lora", base="ann/hidden", private=True)
    own = place.report_of("ann/hidden-lora")
    assert own["base"]["name"] == "ann/hidden"
    place.ann.set_private("ann/hidden-lora", private=False)
    assert place.report_of("ann/hidden-lora") == own
    with Hub(place.hub.url, place.hub.user("bob")) as bob:
        shown = bob.adapter_report("ann/hidden-lora")
    assert shown["title"] == own["title"]
    assert shown["base"] == {
        "name": "a model that you may not read",
        "commit": None,
        "is_at_hand": False,
        "differs": False,
    }
    assert "ann/hidden" not in json.dumps(shown).replace("ann/hidden-lora", "")
    assert shown["base_digest"] is None

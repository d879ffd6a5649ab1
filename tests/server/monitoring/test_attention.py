"""What needs attention is said the worst first, with what to do about it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from deltahub.registry.jobs.health import Problem
from deltahub.registry.maintenance.gc.plan import Item, Plan
from deltahub.registry.maintenance.scrub.coverage import Coverage
from deltahub.registry.reports.hub_totals import HubTotals, JobTotal
from deltahub.registry.reports.lists.storage import NamespaceRow
from deltahub.server.monitoring.attention import Known, find
from deltahub.server.monitoring.of_hub import Condition

GB = 10**9
FINE = Known(
    condition=Condition(frozenset(), 500 * GB, 1000 * GB, 1.0),
    totals=HubTotals(3, 1, {"pack": 100 * GB}, 300 * GB, (), {}),
    coverage=Coverage(9, 100 * GB, 0, 0, datetime.now(UTC), 30.0),
    plan=Plan(datetime.now(UTC).isoformat(), 3600, 86400, 604800),
    namespaces=[],
    n_failed=0,
)


def told(**changes: object) -> list[tuple[str, str]]:
    found = find(replace(FINE, **changes))  # type: ignore[arg-type]
    assert all(each.advice.endswith(".") for each in found)
    return [(each.level, each.title) for each in found]


def test_a_hub_in_good_order_needs_nothing() -> None:
    assert told() == []


def test_what_cannot_be_found_out_is_no_alarm_but_a_silent_database_is() -> None:
    assert told(totals=None, coverage=None, plan=None, namespaces=None) == []
    assert told(condition=None) == [("danger", "The database does not answer")]


def test_the_worst_comes_first() -> None:
    broken = Condition(
        frozenset({"worker"}), GB, 1000 * GB, None,
        (Problem("worker", "no worker runs on this hub"),),
    )  # fmt: skip
    assert FINE.totals is not None
    waiting = JobTotal("ingest", "store", "queued", 4, datetime.now(UTC) - timedelta(hours=3))
    scrub = replace(waiting, kind="scrub", oldest_at=datetime.now(UTC) - timedelta(hours=99))
    found = told(
        condition=broken,
        totals=replace(FINE.totals, jobs=(waiting, scrub), findings={"pack": 1}),
        coverage=Coverage(9, 100 * GB, 2, 5 * GB, None, 30.0),
        plan=replace(FINE.plan, delete=(Item("a", 20 * GB),)),  # type: ignore[type-var]
        namespaces=[NamespaceRow("lab", "user", 19, 0, 0, 20, None, None, is_own=True)],
        n_failed=2,
    )
    levels = [level for level, _ in found]
    assert levels == sorted(levels, key=("danger", "warning", "info").index)
    titles = " | ".join(title for _, title in found)
    for part in (
        "No worker runs", "1 stored object is damaged", "1.0 GB left", "2 jobs have failed",
        "waited for 3 h", "lab uses 95%", "5.0 GB were not proved", "20.0 GB of the store",
    ):  # fmt: skip
        assert part in titles, titles


def test_a_hub_that_never_proves_is_told_so() -> None:
    assert [level for level, _ in told(coverage=Coverage(9, GB, 0, 0, None, 0.0))] == ["info"]

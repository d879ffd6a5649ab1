"""Reports and lists for administrators on PostgreSQL."""

from datetime import timedelta

import pytest

from deltahub.registry import Registry
from deltahub.registry.access import bootstrap, tokens, users
from deltahub.registry.db.models import utc_now
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.jobs import queue, requests
from deltahub.registry.leases.processes import list_processes
from deltahub.registry.losses import findings
from deltahub.registry.maintenance.scrub.coverage import coverage
from deltahub.registry.reports.families import largest_families
from deltahub.registry.reports.history import HistoryWriter, Traffic, hour_of, read_history
from deltahub.registry.reports.lists import audit_log, people, storage
from deltahub.registry.reports.lists.pages import Asked, Page

LISTS = {
    "users": (people.list_users, ("name", "created", "seen", "tokens")),
    "tokens": (people.list_tokens, ("created", "user", "expires", "scope")),
    "sessions": (people.list_sessions, ("seen", "user", "created", "address")),
    "organizations": (people.list_organizations, ("name", "members")),
    "namespaces": (storage.list_namespaces, ("name", "stored", "logical", "repositories")),
    "packs": (storage.list_packs, ("created", "size", "proved")),
    "findings": (storage.list_findings, ("found", "seen")),
    "dropped": (storage.list_all_dropped, ("dropped",)),
}


def test_every_list_goes_through_all_rows_in_every_order(reg: Registry) -> None:
    bootstrap.bootstrap_admin(reg)
    for name in ("ann", "Bea", "cleo"):
        users.create_user(reg, name)
        tokens.create_token(reg, name, "write")
    admin = tokens.authenticate(reg, tokens.create_token(reg, "admin", "admin"))
    with reg.db.write() as session:
        for n in range(3):
            findings.report(session, "tensor", f"{n:064}", "lost_tensor", "it is gone")
            queue.enqueue(session, "scrub", {}, size_bytes=n)
    for name, (read, orders) in LISTS.items():
        for order in orders:
            ways = [walked(lambda asked: read(reg, asked), f"{sign}{order}") for sign in ("", "-")]  # type: ignore[operator]  # noqa: B023
            assert ways[0] == ways[1][::-1], (name, order)
            assert len(ways[0]) >= (3 if name in ("users", "findings", "namespaces") else 0)
    for order in ("created", "finished", "size"):
        jobs = walked(lambda asked: requests.page_of_jobs(reg, admin, asked), order)
        assert len(jobs) == 3
    found = audit_log.list_events(reg, Asked(), audit_log.EventFilter(user="", target="BEA"))
    assert {row.action for row in found.items} == {"user.create", "token.create"}
    for after in ("WyJuYW1lIiwgInYiLCAxLCAxXQ", "WyJuYW1lIiwgInYiLCAiYSIsICJiIl0"):
        with pytest.raises(InvalidRequest):
            people.list_users(reg, Asked("name", after))


def test_the_history_is_written_once_by_two_servers(reg: Registry) -> None:
    now = hour_of(utc_now())
    for number in range(2):
        HistoryWriter(reg).note(Traffic(10 + number, 1, 1), now)
    (row,) = read_history(reg, timedelta(days=1))
    assert (row.sent_bytes, row.requests) == (21, 2)


def test_reports_of_an_empty_hub(reg: Registry) -> None:
    assert largest_families(reg) == []
    assert coverage(reg).n_objects == 0
    assert list_processes(reg) == []


def walked(read: object, sort: str) -> list[str]:
    rows: list[str] = []
    after = None
    while True:
        page: Page[object] = read(Asked(sort, after, 2))  # type: ignore[operator]
        rows += map(repr, page.items)
        after = page.after
        if after is None:
            return rows

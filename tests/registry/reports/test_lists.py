"""Lists for administrators go page by page through any order, and refuse what is no order."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltahub.registry import Registry
from deltahub.registry.access import audit, tokens, users
from deltahub.registry.db.paging.keyset import Asked, Page
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.reports.lists import audit_log, people, storage
from support.registry.opened import opened_registry

NAMES = ["ann", "bea", "Cleo", "dora", "eve"]


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        for name in NAMES:
            users.create_user(reg, name)
            for _ in range(len(name)):
                tokens.create_token(reg, name, "write")
        yield reg


def walked(read: Callable[[Asked], Page[people.UserRow]], sort: str) -> list[str]:
    names: list[str] = []
    after = None
    while True:
        page = read(Asked(sort, after, 2))
        assert len(page.items) <= 2
        names += [row.name for row in page.items]
        after = page.after
        if after is None:
            return names


@pytest.mark.parametrize("sort", ["name", "created", "seen", "tokens"])
def test_pages_hold_every_row_once_in_both_directions(reg: Registry, sort: str) -> None:
    up = walked(lambda asked: people.list_users(reg, asked), sort)
    assert sorted(up) == sorted(set(up))
    assert set(NAMES) <= set(up)
    assert walked(lambda asked: people.list_users(reg, asked), f"-{sort}") == up[::-1]


def test_filters_leave_the_rest_out(reg: Registry) -> None:
    assert [each.name for each in people.list_users(reg, Asked(), words="CLE").items] == ["Cleo"]
    assert len(people.list_tokens(reg, Asked(), user="ann").items) == 3
    assert people.list_users(reg, Asked(), state="disabled").items == []


@pytest.mark.parametrize("sort", ["hash", "-", "name;"])
def test_what_is_no_order_is_refused(reg: Registry, sort: str) -> None:
    with pytest.raises(InvalidRequest, match="no order"):
        people.list_users(reg, Asked(sort))


@pytest.mark.parametrize("after", ["x", "eyJ9", "W10", "WyJuYW1lIiwgInYiLCAxLCAxXQ"])
def test_what_is_no_cursor_is_refused(reg: Registry, after: str) -> None:
    with pytest.raises(InvalidRequest, match="first page"):
        people.list_users(reg, Asked("name", after))


def test_a_cursor_of_another_order_is_refused(reg: Registry) -> None:
    after = people.list_users(reg, Asked("name", None, 2)).after
    with pytest.raises(InvalidRequest, match="first page"):
        people.list_users(reg, Asked("created", after))


def test_the_audit_log_is_filtered_by_user_action_target_and_time(reg: Registry) -> None:
    with reg.db.write() as session:
        for n in range(7):
            audit.append(session, None, "test.act", f"target {n}")
    wanted = audit_log.EventFilter(action="test.", target="TARGET")
    page = audit_log.list_events(reg, Asked(limit=3), wanted)
    assert [row.target for row in page.items] == ["target 6", "target 5", "target 4"]
    rest = audit_log.list_events(reg, Asked(after=page.after), wanted)
    assert [row.target for row in rest.items] == [f"target {n}" for n in (3, 2, 1, 0)]
    oldest = audit_log.list_events(reg, Asked("at", None, 2), wanted)
    assert [row.target for row in oldest.items] == ["target 0", "target 1"]
    since = audit_log.EventFilter(since=page.items[0].at, action="test.")
    # Some may have been written in the same microsecond.
    late = [row.target for row in [*page.items, *rest.items] if row.at >= page.items[0].at]
    assert [row.target for row in audit_log.list_events(reg, Asked(), since).items] == late
    until = audit_log.EventFilter(until=rest.items[-1].at, action="test.")
    assert audit_log.list_events(reg, Asked(), until).items == []


def test_a_rare_filter_is_looked_for_window_by_window(
    reg: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_WINDOW", 5)
    found, after, n_pages = [], None, 0
    while True:
        page = audit_log.list_events(
            reg, Asked(after=after), audit_log.EventFilter(action="user.create", target="ann")
        )
        found += page.items
        n_pages += 1
        after = page.after
        if after is None:
            break
    assert [each.target for each in found] == ["ann"]
    assert n_pages > 3


def test_namespaces_show_what_they_use_and_may_use(reg: Registry) -> None:
    rows = storage.list_namespaces(reg, Asked("-stored"), words="ann").items
    assert [(row.name, row.stored_bytes, row.share) for row in rows] == [("ann", 0, None)]
    assert storage.list_packs(reg, Asked()).items == []
    assert storage.list_findings(reg, Asked()).items == []
    assert storage.list_all_dropped(reg, Asked()).items == []

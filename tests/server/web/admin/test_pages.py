"""The pages of administrators: what they show, to whom, and what can be exported from them."""

import csv
import io
import json
import re
from datetime import timedelta

import pytest
from sqlalchemy import delete

from deltahub.registry.access import audit, tokens, users
from deltahub.registry.db.models import Pack, utc_now
from deltahub.registry.db.tables.quotas import HubHistory
from deltahub.registry.losses import findings
from deltahub.registry.reports.history import HistoryWriter, Traffic, hour_of
from deltahub.server.tables.all import TABLES
from deltahub.server.tables.table import Column, Table
from support.merging.family import Family
from support.web.browser import Browser, Page

PAGES = (
    "", "/jobs", "/storage", "/storage/namespaces", "/storage/packs", "/storage/findings",
    "/storage/dropped", "/access/users", "/access/organizations", "/access/tokens",
    "/access/sessions", "/access/audit", "/settings",
)  # fmt: skip
TABLE_PAGES = [page for page in PAGES[1:-1] if page != "/storage"]
API = ("overview", "history", "garbage", "processes", "settings", "tables/users")


def send(browser: Browser, path: str, form: dict[str, str] | None = None) -> Page:
    return browser.post(f"/-/admin{path}", form, csrf=browser.get("/-/jobs").csrf)


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_for_administrators_alone(
    family: Family, admin: Browser, ann: Browser, page: str
) -> None:
    answer = admin.get(f"/-/admin{page}")
    assert answer.status == 200
    assert len(re.findall("<h1", answer.text)) == 1
    assert 'aria-current="page"' in answer.text
    assert " style=" not in answer.text
    hidden = ann.get(f"/-/admin{page}")
    assert (hidden.status, hidden.text.count("/-/admin")) == (404, 0)
    assert Browser(family.hub.url).get(f"/-/admin{page}").location.startswith("/-/login?next=")


@pytest.mark.parametrize(
    "path", ["/access/users", "/access/tokens/1/revoke", "/storage/namespaces/ann/quota"]
)
def test_actions_are_for_administrators_alone(family: Family, ann: Browser, path: str) -> None:
    assert send(ann, path, {"name": "mallory"}).status == 404
    assert "mallory" not in {user.name for user in users.list_users(family.hub.registry)}


@pytest.mark.parametrize("page", API)
def test_the_api_tells_the_same_to_administrators_alone(family: Family, page: str) -> None:
    hub, path = family.hub, f"/v1/admin/{page}"
    assert hub.call("GET", path, token=hub.admin_token).status == 200
    assert hub.call("GET", path, token=family.token).status == 403
    assert hub.call("GET", path).status == 401


def test_the_overview_says_what_the_hub_holds_and_saves(family: Family, admin: Browser) -> None:
    page = admin.get("/-/admin").text
    assert 'href="/ann/base"' in page
    found = family.hub.call("GET", "/v1/admin/overview", token=family.hub.admin_token).json()
    assert found["logical_bytes"] > found["stored_bytes"]["pack"] > 0
    (of_base,) = (each for each in found["families"] if each["base"] == "ann/base")
    assert of_base["n_models"] >= len(family.models)
    assert of_base["logical_bytes"] > of_base["stored_bytes"]
    assert found["coverage"]["n_objects"] > 0


def test_damage_and_failed_jobs_are_what_needs_attention_first(
    family: Family, admin: Browser
) -> None:
    reg = family.hub.registry
    with reg.db.write() as session:
        findings.report(session, "tensor", "ab" * 32, "lost_tensor", "<b>gone</b>")
    page = admin.get("/-/admin/storage/findings").text
    assert "&lt;b&gt;gone&lt;/b&gt;" in page
    with reg.db.write() as session:
        findings.close(session, "tensor", ["ab" * 32], "a test")
    assert "ab" * 32 not in admin.get("/-/admin/storage/findings").text
    assert "ab" * 32 in admin.get("/-/admin/storage/findings?state=repaired").text


def test_two_servers_write_the_history_once_and_the_page_draws_it(
    family: Family, admin: Browser
) -> None:
    reg, now = family.hub.registry, hour_of(utc_now())
    # Whatever this hub has noted of itself, when other tests had not pushed yet.
    with reg.db.write() as session:
        session.execute(delete(HubHistory))
    for _ in range(2):
        HistoryWriter(reg).note(Traffic(10, 1, 1), now)
    HistoryWriter(reg).note(Traffic(5, 1, 1), now - timedelta(hours=1))
    with reg.db.read() as session:
        rows = [session.get_one(HubHistory, now - timedelta(hours=n)) for n in (0, 1)]
    assert rows[0].logical_bytes == rows[1].logical_bytes > 0
    assert rows[0].sent_bytes >= 20
    assert "no-history" not in admin.get("/-/admin").text
    answer = family.hub.call("GET", "/v1/admin/history?days=1", token=family.hub.admin_token)
    assert [each["n_repositories"] > 0 for each in answer.json()["items"]] == [True, True]


@pytest.mark.parametrize("page", TABLE_PAGES)
def test_every_table_exports_the_same_rows_as_csv_and_json(admin: Browser, page: str) -> None:
    path = f"/-/admin{page}"
    given = json.loads(admin.get(f"{path}?format=json").text)
    answer = admin.get(f"{path}?format=csv")
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert answer.headers["Content-Disposition"].startswith("attachment")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == len(given["items"])
    for row, item in zip(rows, given["items"], strict=True):
        assert list(row) == list(item)
    assert admin.get(f"{path}?format=xml").status == 422
    assert admin.get(f"{path}?sort=nope").status == 422
    assert admin.get(f"{path}?after=nope").status == 422


@pytest.mark.parametrize("name", list(TABLES))
def test_every_order_of_every_table_goes_up_and_down(family: Family, name: str) -> None:
    for column in TABLES[name].columns:
        if column.sort is not None:
            for sort in (column.sort, f"-{column.sort}"):
                path = f"/v1/admin/tables/{name}?sort={sort}&limit=3"
                answer = family.hub.call("GET", path, token=family.hub.admin_token)
                assert answer.status == 200, answer.body
                shown = [row[column.key] for row in answer.json()["items"]]
                known = [each for each in shown if each is not None]
                assert known == sorted(known, reverse=sort.startswith("-"))


def test_pages_of_the_api_go_on_where_the_one_before_ended(family: Family) -> None:
    seen: list[str] = []
    after = ""
    while True:
        path = f"/v1/admin/tables/jobs?limit=2{after}"
        page = family.hub.call("GET", path, token=family.hub.admin_token).json()
        seen += [row["id"] for row in page["items"]]
        if page["after"] is None:
            break
        after = f"&after={page['after']}"
    assert len(seen) == len(set(seen)) > 2


def test_no_cell_of_a_csv_is_a_formula() -> None:
    class Row:
        text = "=1+1"
        words = ("=a", "b")
        number = -3

    table = Table(
        "t",
        (Column("text", "T"), Column("words", "W", "list"), Column("number", "N", "number")),
        lambda hub, caller, asked, given: None,  # type: ignore[arg-type,return-value]
        "text",
    )
    for text in ("=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "  =1", "|x", "\n=1"):
        Row.text = text
        (cells,) = list(csv.reader(io.StringIO(table.csv([Row()]))))[1:]
        assert cells == [f"'{text}", "'=a; b", "-3"]


def test_names_are_text_in_every_table(family: Family, admin: Browser) -> None:
    evil = "<script>alert(1)</script>"
    tokens.create_token(family.hub.registry, "ann", "read", evil)
    with family.hub.registry.db.write() as session:
        audit.append(session, None, "test.act", evil, {evil: evil})
    Browser(family.hub.url, headers={"User-Agent": evil}).log_in(family.token)
    for page in ("access/tokens", "access/audit", "access/sessions"):
        text = admin.get(f"/-/admin/{page}").text
        assert evil not in text
        assert "&lt;script&gt;" in text
    for form in (f"/-/admin/access/users?words={evil}", f"/-/admin/access/audit?user={evil}"):
        assert evil not in admin.get(form).text


def test_an_administrator_makes_a_user_and_the_log_says_who_did(
    family: Family, admin: Browser
) -> None:
    made = send(admin, "/access/users", {"name": "newcomer"})
    (link,) = re.findall(r"http://\S+?(/-/invitation/[\w-]+)", made.text)[:1]
    assert Browser(family.hub.url).get(link).status == 200
    events = json.loads(admin.get("/-/admin/access/audit?action=user.create&format=json").text)
    (event,) = (each for each in events["items"] if each["target"] == "newcomer")
    assert event["user"] == "admin"
    again = send(admin, "/access/users", {"name": "newcomer"})
    assert again.status == 409
    assert "newcomer" in again.text


def test_a_revoked_token_and_an_ended_session_work_no_more(family: Family, admin: Browser) -> None:
    hub = family.hub
    token = hub.user("leaver")
    browser = Browser(hub.url)
    browser.log_in(token)
    shown = json.loads(admin.get("/-/admin/access/tokens?user=leaver&format=json").text)["items"]
    assert send(admin, f"/access/tokens/{shown[0]['id']}/revoke").status == 303
    assert hub.call("GET", "/v1/whoami", token=token).status == 401
    assert browser.get("/-/jobs").status == 303, "a session ends with the token that began it"
    browser = Browser(hub.url)
    browser.log_in(tokens.create_token(hub.registry, "leaver", "write"))
    assert browser.get("/-/jobs").status == 200
    held = json.loads(admin.get("/-/admin/access/sessions?user=leaver&format=json").text)["items"]
    assert send(admin, f"/access/sessions/{held[0]['id']}/end").status == 303
    assert browser.get("/-/jobs").status == 303
    assert send(admin, "/access/tokens/99999/revoke").status == 404


def test_limits_of_a_namespace_are_set_and_shown_and_taken_away(
    family: Family, admin: Browser
) -> None:
    family.hub.user("limited")
    place = "/storage/namespaces/limited/quota"
    assert send(admin, place, {"repositories": "3", "stored": "1.5 GB", "files": ""}).status == 303

    def row() -> dict[str, object]:
        path = "/-/admin/storage/namespaces?words=limited&format=json"
        found: dict[str, object] = json.loads(admin.get(path).text)["items"][0]
        return found

    assert (row()["limit_repositories"], row()["limit_stored_bytes"]) == (3, 1_500_000_000)
    assert (row()["limit_logical_bytes"], row()["is_own"]) == (None, True)
    assert send(admin, place, {"stored": "much"}).status == 422
    assert send(admin, place, {"clear": "1"}).status == 303
    assert row()["is_own"] is False


def test_the_plan_of_a_collection_is_shown_with_the_command_that_applies_it(
    family: Family, admin: Browser
) -> None:
    page = admin.get("/-/admin/storage").text
    assert f"deltahub gc --apply --data-dir {family.hub.registry.data_dir}" in page
    with family.hub.registry.db.read() as session:
        n_packs = session.query(Pack).count()
    shown = json.loads(admin.get("/-/admin/storage/packs?format=json").text)["items"]
    assert 0 < len(shown) <= n_packs


def test_settings_are_shown_without_secrets(family: Family, admin: Browser) -> None:
    groups = json.loads(admin.get("/-/admin/settings?format=json").text)
    assert {"hub", "server", "worker"} <= groups.keys()
    (key,) = (e for e in groups["server"] if e["variable"] == "DELTAHUB_SERVER_SIGNING_KEY")
    assert key["value"] in (None, "set")
    assert all(each["about"] for group in groups.values() for each in group)
    changed = json.loads(admin.get("/-/admin/settings?changed=true&format=json").text)["hub"]
    assert "DELTAHUB_DATA_DIR" in {each["variable"] for each in changed}
    workers = family.hub.call("GET", "/v1/admin/processes", token=family.hub.admin_token).json()
    assert [each["queues"] for each in workers["items"]] == [["io", "cpu", "gpu"]]


def test_a_search_in_the_audit_log_is_bounded_by_time(admin: Browser) -> None:
    every = json.loads(admin.get("/-/admin/access/audit?format=json").text)["items"]
    none = json.loads(admin.get("/-/admin/access/audit?until=2000-01-01&format=json").text)
    assert every
    assert none["items"] == []
    assert admin.get("/-/admin/access/audit?since=yesterday").status == 422

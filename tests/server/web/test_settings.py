"""A person's own pages: what they show, and what their forms change."""

import re
from html import unescape

import pytest

from deltahub.registry.access import organizations, tokens, users
from deltahub.registry.access.login import invitations, passwords, sessions
from deltahub.registry.quotas import limits
from support.service.hub import RunningHub
from support.web.browser import Browser

GOOD = "a sentence that nobody guesses"
PAGES = ("", "/password", "/sessions", "/tokens", "/organizations", "/storage")


def logged_in(hub: RunningHub, name: str) -> Browser:
    browser = Browser(hub.url)
    browser.log_in(hub.user(name))
    return browser


@pytest.mark.parametrize("page", PAGES)
def test_settings_ask_for_a_login_and_lead_back(hub: RunningHub, page: str) -> None:
    browser = Browser(hub.url)
    answer = browser.get(f"/-/settings{page}?x=1")
    assert (answer.status, answer.location.partition("?")[0]) == (303, "/-/login")
    assert browser.get(answer.location).status == 200
    assert browser.log_in(hub.admin_token, f"/-/settings{page}?x=1").location.endswith("?x=1")


@pytest.mark.parametrize("page", PAGES)
def test_each_page_has_one_heading_and_marks_itself(hub: RunningHub, page: str) -> None:
    browser = Browser(hub.url)
    browser.log_in(hub.admin_token)
    text = browser.get(f"/-/settings{page}").text
    assert len(re.findall("<h1", text)) == 1
    assert f'href="/-/settings{page}" aria-current="page"' in text
    labels = set(re.findall(r'<label[^>]* for="([^"]+)"', text))
    fields = re.findall(
        r'<(?:input|select)(?![^>]*type="(?:hidden|radio)")[^>]* id="([^"]+)"', text
    )
    assert set(fields) <= labels


def test_an_invitation_sets_a_password_and_logs_in_once(hub: RunningHub) -> None:
    users.create_user(hub.registry, "invitee")
    secret = invitations.invite(hub.registry, None, "invitee", by_shell=True)
    path = f"/-/invitation/{secret}"
    browser = Browser(hub.url)
    for _ in range(2):  # as mail programs look at links
        assert "invitee" in browser.get(path).text
    short = browser.post(path, {"password": "short"}, csrf=browser.get(path).csrf)
    assert (short.status, "at least 10 characters" in short.problem) == (422, True)
    answer = browser.post(path, {"password": GOOD})
    assert (answer.status, answer.location) == (303, "/")
    assert "<h1>invitee</h1>" in browser.get("/-/settings").text
    assert Browser(hub.url).get(path).status == 404
    again = Browser(hub.url)
    form = {"name": "invitee", "password": GOOD, "next": "/-/settings"}
    assert again.post("/-/login/password", form).location == "/-/settings"


def test_a_password_is_set_and_then_changed(hub: RunningHub) -> None:
    browser = logged_in(hub, "changer")
    place = "/-/settings/password"
    assert 'id="old"' not in browser.get(place).text
    assert "is set" in browser.post(place, {"new": GOOD}).text
    assert 'id="old"' in browser.get(place).text
    wrong = browser.post(place, {"old": "wrong wrong wrong", "new": "another good one"})
    assert (wrong.status, "current password is wrong" in wrong.problem) == (403, True)
    other = Browser(hub.url)
    other.post("/-/login/password", {"name": "changer", "password": GOOD})
    assert other.get("/-/settings").status == 200
    assert browser.post(place, {"old": GOOD, "new": "another good one"}).status == 200
    assert other.get("/-/settings").status == 303
    assert browser.get("/-/settings").status == 200
    assert passwords.log_in(hub.registry, "changer", "another good one")


def test_sessions_are_shown_and_ended(hub: RunningHub) -> None:
    token = hub.user("sitter")
    agents = (
        "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
        "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0",
        "",
    )
    browsers = [Browser(hub.url, headers={"User-Agent": agent}) for agent in agents]
    for browser in browsers:
        browser.log_in(token)
    text = browsers[0].get("/-/settings/sessions").text
    shown = re.findall(r'data-session="(\d+)"( data-own)?.*?<strong[^>]*>([^<]+)<', text, re.DOTALL)
    assert {name for _, _, name in shown} == {
        "Firefox on Linux", "Edge on Windows", "an unknown browser",
    }  # fmt: skip
    assert [name for _, own, name in shown if own] == ["Firefox on Linux"]
    edge = next(number for number, _, name in shown if name.startswith("Edge"))
    assert browsers[0].post("/-/settings/sessions/end", {"id": edge}).status == 303
    assert [each.get("/-/settings").status for each in browsers] == [200, 303, 200]
    assert browsers[0].post("/-/settings/sessions/end-others").status == 303
    assert [each.get("/-/settings").status for each in browsers] == [200, 303, 303]


def test_a_session_of_somebody_else_is_not_ended(hub: RunningHub) -> None:
    admin, browser = Browser(hub.url), logged_in(hub, "meddler")
    admin.log_in(hub.admin_token)
    own = {each.id: each.user for each in sessions.list_sessions(hub.registry)}
    (of_admin, *_) = [number for number, user in own.items() if user == "admin"]
    for number in (str(of_admin), "999999", "-1", "x", "9" * 30, "\u0663"):
        assert browser.post("/-/settings/sessions/end", {"id": number}).status in (404, 422)
    assert admin.get("/-/settings").status == 200


def test_a_user_keeps_the_latest_hundred_sessions(hub: RunningHub) -> None:
    user_id = users.create_user(hub.registry, "many").id
    secrets = [
        sessions.begin_session(hub.registry, user_id, agent="", address="", how="password")[0]
        for _ in range(sessions.MOST + 2)
    ]
    assert len(sessions.list_sessions(hub.registry, user_id)) == sessions.MOST
    assert sessions.session_caller(hub.registry, secrets[1]) is None
    assert sessions.session_caller(hub.registry, secrets[2]) is not None


def test_a_token_is_made_shown_once_used_and_revoked(hub: RunningHub) -> None:
    browser = logged_in(hub, "maker")
    place = "/-/settings/tokens"
    made = browser.post(place, {"label": "cluster", "scope": "read", "days": "7"})
    found = re.search(r'id="new-token">(hf_[^<]+)<', made.text)
    assert found is not None
    assert hub.call("GET", "/v1/whoami", token=found[1]).json()["scope"] == "read"
    text = browser.get(place).text
    assert found[1] not in text
    (info,) = [each for each in tokens.list_tokens(hub.registry, "maker") if each.label]
    assert f'data-token="{info.id}"' in text
    assert info.expires_at is not None
    assert round((info.expires_at - info.created_at).total_seconds() / 86400) == 7
    assert browser.post(f"{place}/revoke", {"id": str(info.id)}).status == 303
    assert hub.call("GET", "/v1/whoami", token=found[1]).status == 401


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"label": "", "scope": "read", "days": "7"}, 422, "what the token is for"),
        ({"label": "x", "scope": "admin", "days": "7"}, 403, "scope admin"),
        ({"label": "x", "scope": "all", "days": "7"}, 422, "no scope"),
        ({"label": "x", "scope": "read", "days": "x"}, 422, "no number"),
        ({"label": "x" * 201, "scope": "read", "days": ""}, 422, "200 characters"),
        ({"label": "x", "scope": "read", "days": "99999999"}, 422, "100 years"),
    ],
)
def test_a_form_that_makes_no_token_says_why(
    hub: RunningHub, form: dict[str, str], status: int, words: str
) -> None:
    name = f"wrong-{abs(hash(words)) % 10**8}"
    browser = logged_in(hub, name)
    page = browser.post("/-/settings/tokens", form)
    assert (page.status, words in page.problem) == (status, True), page.problem
    assert len(tokens.list_tokens(hub.registry, name)) == 1


def test_an_organization_is_made_and_its_members_changed(hub: RunningHub) -> None:
    browser = logged_in(hub, "founder")
    member = logged_in(hub, "colleague")
    place = "/-/settings/organizations"
    answer = browser.post(place, {"name": "founders"})
    assert (answer.status, answer.location) == (303, f"{place}/founders")
    for role in ("read", "write"):
        answer = browser.post(f"{place}/founders/members", {"user": "colleague", "role": role})
        assert answer.status == 303
    text = member.get(f"{place}/founders").text
    roles = dict(re.findall(r'data-member="([^"]+)" data-role="([^"]+)"', text))
    assert roles == {"founder": "admin", "colleague": "write"}
    assert f'action="{place}/founders/members"' not in text
    page = member.post(f"{place}/founders/members", {"user": "colleague", "role": "admin"})
    assert page.status == 403
    page = browser.post(f"{place}/founders/members", {"user": "nobody-here", "role": "read"})
    assert (page.status, "no user" in page.problem) == (404, True)
    page = browser.post(f"{place}/founders/remove", {"user": "founder"})
    assert (page.status, "last administrator" in page.problem) == (409, True)
    answer = member.post(f"{place}/founders/remove", {"user": "colleague"})
    assert (answer.status, answer.location) == (303, place)
    assert member.get(f"{place}/founders").status == 404
    page = browser.post(place, {"name": "founder"})
    assert (page.status, 'value="founder"' in page.text) == (409, True)


def test_members_come_page_by_page(hub: RunningHub) -> None:
    browser = logged_in(hub, "crowd-admin")
    browser.post("/-/settings/organizations", {"name": "crowd"})
    for i in range(101):
        users.create_user(hub.registry, f"crowd-{i:03d}")
        organizations.add_member(hub.registry, "crowd", f"crowd-{i:03d}", "read")
    found: list[str] = []
    path = "/-/settings/organizations/crowd"
    while path:
        text = browser.get(path).text
        found += re.findall(r'data-member="([^"]+)"', text)
        more = re.search(r'class="more"><a class="btn" href="([^"]+)"', text)
        path = "" if more is None else unescape(more[1])
    assert found == sorted({*(f"crowd-{i:03d}" for i in range(101)), "crowd-admin"})


def test_storage_shows_what_is_used_of_what(hub: RunningHub) -> None:
    browser = logged_in(hub, "keeper")
    limits.set_limits(
        hub.registry, None, "keeper", limits.Limits(2, 1_500_000_000, None), by_shell=True
    )
    token = tokens.create_token(hub.registry, "keeper", "write")
    hub.create("keeper/one", token=token)
    text = browser.get("/-/settings/storage").text
    assert 'data-namespace="keeper"' in text
    assert "of 1.5 GB" in text
    assert 'aria-label="Repositories: 50 % used"' in text
    assert text.count('class="bar"') == 2
    assert "no limit" in text

"""What a page of another site, a thief or a guesser cannot do with the hub's pages."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deltahub.registry.access import accounts, tokens, users
from deltahub.registry.access.login import invitations, passwords
from deltahub.server.browser_sessions import COOKIE, CSRF_HEADER
from deltahub.server.connections.redaction import redacted
from deltahub.server.settings import ServerSettings
from deltahub.server.web.account.login import local_path
from deltahub.server.web.account.turns import REFUSED_AFTER_S
from support.service.hub import RunningHub, running_hub
from support.web.browser import Browser

GOOD = "a sentence that nobody guesses"


def browser_of(hub: RunningHub, token: str | None = None) -> Browser:
    browser = Browser(hub.url)
    browser.log_in(token or hub.admin_token)
    return browser


def with_password(hub: RunningHub, name: str) -> None:
    users.create_user(hub.registry, name)
    secret = invitations.invite(hub.registry, None, name, by_shell=True)
    invitations.accept(hub.registry, secret, GOOD)


# Requests of other sites


def test_a_form_without_our_token_changes_nothing(hub: RunningHub) -> None:
    browser, other = browser_of(hub), browser_of(hub)
    stranger = Browser(hub.url)
    for csrf in ("", "junk", "a.b", stranger.csrf(), other.csrf(), browser.csrf()[:-1]):
        page = browser.post("/-/settings/organizations", {"name": "forged"}, csrf=csrf)
        assert page.status == 403, csrf
    assert "forged" not in browser.get("/-/settings/organizations").text
    assert browser.post("/-/settings/organizations", {"name": "genuine"}).status == 303


def test_the_token_of_a_form_may_come_in_the_header(hub: RunningHub) -> None:
    browser = browser_of(hub)
    headers = {CSRF_HEADER: browser.csrf()}
    page = browser.post("/-/settings/sessions/end-others", csrf="", headers=headers)
    assert page.status == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"}, {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://hub"},
    ],
)  # fmt: skip
def test_a_page_of_another_site_sends_no_form(hub: RunningHub, headers: dict[str, str]) -> None:
    browser = browser_of(hub)
    for path in ("/-/logout", "/-/login/token", "/-/settings/tokens", "/-/login/password"):
        assert browser.post(path, {"token": hub.admin_token}, headers=headers).status == 403
    assert browser.get("/-/settings").status == 200


def test_the_api_takes_a_cookie_only_with_our_token_in_the_header(hub: RunningHub) -> None:
    browser = browser_of(hub)
    json = {"Content-Type": "application/json"}
    body = b'{"name": "admin/by-cookie"}'
    assert browser.get("/v1/whoami").status == 200
    for headers in (
        json,
        {**json, CSRF_HEADER: "junk"},
        {**json, CSRF_HEADER: Browser(hub.url).csrf()},
    ):
        assert browser.send("POST", "/v1/repositories", body, headers).status == 403
        assert browser.send("POST", "/api/repos/create", body, headers).status == 403
    headers = {**json, CSRF_HEADER: browser.csrf()}
    assert browser.send("POST", "/v1/repositories", body, headers).status == 201
    assert browser.send("DELETE", "/v1/repositories/admin/by-cookie", None, json).status == 403


# Sessions


def test_a_login_never_keeps_the_cookie_that_was_there_before(hub: RunningHub) -> None:
    planted = browser_of(hub, hub.user("planter")).session
    assert planted is not None
    victim = Browser(hub.url, {COOKIE: planted})
    victim.log_in(hub.user("victim"))
    assert victim.session not in (None, planted)
    assert "victim" in victim.get("/-/settings").text
    # The session that the browser came with has ended, too.
    assert Browser(hub.url, {COOKIE: planted}).get("/-/settings").status == 303


def test_a_cookie_that_the_hub_did_not_sign_is_no_session(hub: RunningHub) -> None:
    session = browser_of(hub).session or ""
    for forged in ("x", session[:-2], session.replace(".", ""), "e30.x", session + "x"):
        assert Browser(hub.url, {COOKIE: forged}).get("/-/settings").status == 303


def test_scripts_and_other_sites_do_not_get_the_cookie(hub: RunningHub) -> None:
    browser = Browser(hub.url)
    (morsel,) = browser.log_in(hub.admin_token).cookies.values()
    assert (morsel.key, morsel["httponly"], morsel["path"]) == (COOKIE, True, "/")
    assert (morsel["samesite"].lower(), morsel["domain"], morsel["secure"]) == ("lax", "", "")


def test_over_https_the_cookie_belongs_to_this_host_alone(tmp_path: Path) -> None:
    settings = ServerSettings(public_url="https://hub.example.com", stop_grace_s=2)
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        browser = Browser(hub.url)
        (morsel,) = browser.log_in(hub.admin_token).cookies.values()
        assert morsel.key == f"__Host-{COOKIE}"
        assert (morsel["secure"], morsel["path"], morsel["domain"]) == (True, "/", "")
        assert browser.get("/-/settings").status == 200
        # A page of http://hub.example.com, or of a neighbour, may set the other name.
        tossed = Browser(hub.url, {COOKIE: morsel.value})
        assert tossed.get("/-/settings").status == 303


def test_a_session_stops_at_once_when_it_ends_or_its_user_is_disabled(hub: RunningHub) -> None:
    token = hub.user("leaver")
    first, second = browser_of(hub, token), browser_of(hub, token)
    assert first.post("/-/settings/sessions/end-others").status == 303
    assert second.get("/-/settings").status == 303
    kept = Browser(hub.url, dict(first.jar))
    assert first.post("/-/logout").status == 303
    assert first.session is None
    assert kept.get("/-/settings").status == 303
    third = browser_of(hub, token)
    accounts.disable(hub.registry, None, "leaver", by_shell=True)
    assert third.get("/-/settings").status == 303
    assert hub.call("GET", "/v1/whoami", token=token).status == 401
    fourth = Browser(hub.url).post("/-/login/token", {"token": token})
    assert (fourth.status, fourth.cookies) == (401, {})


def test_a_session_that_a_token_began_ends_with_it(hub: RunningHub) -> None:
    token = hub.user("borrower", "read")
    browser = browser_of(hub, token)
    page = browser.post("/-/settings/tokens", {"label": "more", "scope": "write", "days": "7"})
    assert (page.status, "scope read" in page.problem) == (403, True)
    (info,) = tokens.list_tokens(hub.registry, "borrower")
    tokens.revoke_token(hub.registry, info.id)
    assert browser.get("/-/settings").status == 303


def test_cookies_are_no_tokens_and_tokens_no_cookies(hub: RunningHub) -> None:
    browser = browser_of(hub)
    assert browser.session is not None
    secret = hub.server._hub.signer.verify("session cookie", browser.session)["secret"]
    csrf = browser.csrf()
    invitation = invitations.invite(hub.registry, None, "admin", by_shell=True)
    for value in (browser.session, str(secret), csrf, invitation):
        assert hub.call("GET", "/v1/whoami", token=value).status == 401
        page = Browser(hub.url).post("/-/login/token", {"token": value})
        assert page.status == 401
    for value in (hub.admin_token, str(secret), csrf, invitation):
        assert Browser(hub.url, {COOKIE: value}).get("/-/settings").status == 303
    for value in (hub.admin_token, csrf, "dh_invite_junk"):
        assert browser.get(f"/-/invitation/{value}").status == 404


def test_a_link_that_was_signed_for_a_session_ends_with_it(hub: RunningHub) -> None:
    hub.create("admin/linked", private=True)
    browser = browser_of(hub)
    page = browser.get("/api/models/admin/linked/xet-write-token/main")
    assert page.status == 200
    token = page.headers["X-Xet-Access-Token"]
    place = urlsplit(page.headers["X-Xet-Cas-Url"]).path
    path = f"{place}/v1/chunks/default-merkledb/{'0' * 64}"
    assert hub.call("GET", path, token=token).status == 404  # no such chunk
    browser.post("/-/logout")
    time.sleep(1.1)
    assert hub.call("GET", path, token=token).status == 401


def test_no_log_has_the_secret_of_an_invitation(hub: RunningHub) -> None:
    secret = invitations.invite(hub.registry, None, "admin", by_shell=True)
    assert secret[-20:] not in redacted(f"GET {invitations.PATH}{secret} 200")


# Where pages lead, and what may be done with them


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example", "https://evil.example", "https:evil.example", "javascript:alert(1)",
        "evil.example", "", "/%2f/evil.example", "/%5cevil.example", "/%09/evil.example",
        "/%0d%0aSet-Cookie:a=b", "/\x00", "/\u2028x", " //evil.example", "http://[", "/x" * 2000,
    ],
)  # fmt: skip
def test_next_leads_nowhere_else(hub: RunningHub, path: str) -> None:
    assert local_path(path) == "/"
    page = Browser(hub.url).log_in(hub.admin_token, path)
    assert page.location == "/"


@pytest.mark.parametrize(
    "path", ["/", "/a/b?x=1&y=//z", "/-/settings", "/a/b/blob/main/f\u00fcr alle.txt", "/?q=a\\b"]
)
def test_next_leads_to_pages_of_the_hub(path: str) -> None:
    assert local_path(path) == path


def every_kind_of_answer(hub: RunningHub) -> Iterator[tuple[str, int, dict[str, str]]]:
    browser = browser_of(hub)
    asset = re.search(r'href="(/-/assets/app[^"]+)"', browser.get("/").text)
    assert asset is not None
    pages = {
        "/": 200, "/-/login": 303, "/-/settings": 200, "/-/settings/tokens": 200,
        "/-/nothing": 404, "/nobody/nothing": 404, "/-/nothing/at/all": 404, "/?sort=junk": 422,
        "/login": 307, "/-/assets/none.js": 404, asset[1]: 200, "/-/logout": 404,
    }  # fmt: skip
    for path, status in pages.items():
        page = browser.get(path)
        yield path, status, {**dict(page.headers), ":status": str(page.status)}
    page = browser.post("/-/logout", csrf="wrong")
    yield "/-/logout", 403, {**dict(page.headers), ":status": str(page.status)}
    page = Browser(hub.url).get("/-/settings")
    yield "/-/settings", 303, {**dict(page.headers), ":status": str(page.status)}
    page = browser.send("POST", "/-/logout", b"x" * 200_000)
    yield "/-/logout", 413, {**dict(page.headers), ":status": str(page.status)}


def test_every_answer_has_the_policy_and_no_frame_may_hold_it(hub: RunningHub) -> None:
    nonces = []
    for path, status, headers in every_kind_of_answer(hub):
        lower = {name.lower(): value for name, value in headers.items()}
        assert lower[":status"] == str(status), path
        policy = lower["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'", path
        assert rules["frame-ancestors"] == "'none'", path
        assert rules["form-action"] == "'self'", path
        assert rules["base-uri"] == "'none'", path
        assert "unsafe" not in policy, path
        assert lower["x-frame-options"] == "DENY", path
        assert lower["x-content-type-options"] == "nosniff", path
        assert lower["referrer-policy"] == "same-origin", path
        if "/assets/app" not in path:
            assert "no-store" in lower["cache-control"], path
        nonces += re.findall(r"'nonce-([^']+)'", policy)
    assert len(set(nonces)) == len(nonces)


def test_pages_have_no_inline_scripts_or_styles(hub: RunningHub) -> None:
    browser = browser_of(hub)
    for path in ("/", "/-/settings", "/-/settings/tokens", "/-/settings/sessions", "/-/nothing"):
        text = browser.get(path).text
        assert re.search(r"<[^>]* style=", text) is None, path
        assert re.search(r"<[^>]* on[a-z]+=", text) is None, path
        assert re.search(r"<script(?![^>]* src=)", text) is None, path
        assert "javascript:" not in text, path


def test_what_users_write_is_text_on_pages(hub: RunningHub) -> None:
    browser = browser_of(hub)
    label = '"><script>alert(1)</script>'
    browser.headers = {"User-Agent": label}
    page = browser.post("/-/settings/tokens", {"label": label, "scope": "read", "days": "7"})
    assert page.status == 200
    other = Browser(hub.url, headers={"User-Agent": label})
    other.log_in(hub.admin_token)
    for text in (page.text, other.get("/-/settings/sessions").text):
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


def test_a_file_of_a_model_never_runs_as_a_page_of_the_hub(hub: RunningHub) -> None:
    hub.create("admin/evil")
    hub.commit("admin/evil", {"index.html": b"<script>alert(1)</script>"})
    for path in (
        "/admin/evil/resolve/main/index.html",
        "/v1/repositories/admin/evil/files/index.html",
    ):
        headers = hub.call("GET", path).headers
        assert headers["Content-Type"] == "application/octet-stream"
        assert headers["Content-Disposition"].startswith("attachment")
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_private_page_is_for_strangers_what_nothing_is(hub: RunningHub) -> None:
    hub.create("admin/zq-hidden", private=True)
    member = browser_of(hub)
    member.post("/-/settings/organizations", {"name": "zq-hidden-lab"})
    strangers = (Browser(hub.url), browser_of(hub, hub.user("somebody-else")))
    pairs = [
        ("/admin/zq-hidden", "/admin/zq-absent"),
        ("/-/settings/organizations/zq-hidden-lab", "/-/settings/organizations/zq-absent-lab"),
    ]
    for stranger in strangers:
        for hidden, absent in pairs:
            pages = [stranger.get(path) for path in (hidden, absent)]
            texts = [
                _plain(each.text, path) for each, path in zip(pages, (hidden, absent), strict=True)
            ]
            assert pages[0].status == pages[1].status
            assert texts[0] == texts[1]
            names = [set(each.headers) for each in pages]
            assert names[0] == names[1]
    assert strangers[1].get("/admin/zq-hidden").status == 404
    assert strangers[1].get("/-/settings/organizations/zq-hidden-lab").status == 404


def _plain(text: str, path: str) -> str:
    """A page without what differs each time, and without the name that was asked for."""
    text = re.sub(r"eyJ[\w-]+\.[\w-]+|nonce=\"[^\"]+\"", "", text)
    return text.replace(path, "PATH").replace(path.rpartition("/")[2], "NAME")


# Guessing


def test_guessing_meets_growing_pauses_that_hold_everywhere(hub: RunningHub) -> None:
    with_password(hub, "guessed")
    wrong = {"name": "guessed", "password": "wrong wrong wrong"}
    for _ in range(passwords.FREE_FAILURES):
        assert Browser(hub.url).post("/-/login/password", wrong).status == 401
    page = Browser(hub.url).post("/-/login/password", {"name": "guessed", "password": GOOD})
    assert (page.status, page.cookies) == (401, {})
    # Whoever is logged in stays so, and another user's guesses do not count.
    with_password(hub, "other")
    page = Browser(hub.url).post("/-/login/password", {"name": "other", "password": GOOD})
    assert (page.status, list(page.cookies)) == (303, [COOKIE])


def test_a_wrong_password_and_an_unknown_user_are_answered_alike(hub: RunningHub) -> None:
    with_password(hub, "known")
    hub.user("tokens-only")
    answers = {}
    for name in ("known", "unknown", "tokens-only", "not a name"):
        start = time.monotonic()
        page = Browser(hub.url).post(
            "/-/login/password", {"name": name, "password": "wrong wrong wrong"}
        )
        assert time.monotonic() - start >= REFUSED_AFTER_S
        answers[name] = (page.status, page.problem)
    assert len(set(answers.values())) == 1, answers


def test_many_guesses_at_once_do_not_delay_others(hub: RunningHub) -> None:
    def guess(i: int) -> int:
        form = {"name": f"nobody{i}", "password": "wrong wrong wrong"}
        return Browser(hub.url).post("/-/login/password", form).status

    with ThreadPoolExecutor(12) as pool:
        guesses = [pool.submit(guess, i) for i in range(12)]
        start = time.monotonic()
        browser_of(hub)
        assert time.monotonic() - start < 5
        assert {each.result() for each in guesses} <= {401, 503}

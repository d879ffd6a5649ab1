"""Logging in by OpenID Connect, at a provider that runs in a process of its own."""

import base64
import json
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from deltahub.registry.access import accounts, tokens, users
from deltahub.registry.access.login import identities
from deltahub.registry.errors import Forbidden
from deltahub.registry.settings import WrongSetting
from deltahub.server.openid.provider import Provider
from deltahub.server.settings import ServerSettings
from deltahub.server.web.account import openid
from support.service.hub import RunningHub, running_hub
from support.web.browser import Browser, Page
from support.web.openid import RunningProvider, running_provider


@pytest.fixture(scope="module")
def provider() -> Iterator[RunningProvider]:
    with running_provider() as provider:
        yield provider


def settings(provider: RunningProvider, **more: Any) -> ServerSettings:
    return ServerSettings(
        oidc_issuer=provider.issuer, oidc_client_id="deltahub", oidc_client_secret="s" * 32,
        oidc_name="Example Inc", stop_grace_s=2, **more,
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.fixture(scope="module")
def sso(
    tmp_path_factory: pytest.TempPathFactory, provider: RunningProvider
) -> Iterator[RunningHub]:
    folder = tmp_path_factory.mktemp("sso") / "data"
    with running_hub(folder, server_settings=settings(provider)) as hub:
        yield hub


def sent_to_provider(browser: Browser, query: str = "") -> str:
    page = browser.get(f"/-/login/openid{query}")
    assert page.status == 303, page.text
    return page.location


def log_in(hub: RunningHub, provider: RunningProvider, subject: str) -> tuple[Browser, Page]:
    browser = Browser(hub.url)
    back = provider.agree(sent_to_provider(browser, "?next=/-/settings/tokens"), subject)
    return browser, browser.get(back)


def test_the_login_page_has_the_button(sso: RunningHub, hub: RunningHub) -> None:
    assert "Log in by Example Inc" in Browser(sso.url).get("/-/login").text
    assert "/-/login/openid" not in Browser(hub.url).get("/-/login").text
    assert Browser(hub.url).get("/-/login/openid").status == 404
    assert Browser(hub.url).get("/-/login/openid/back?code=x&state=y").status == 404


def test_a_first_login_makes_a_user_and_the_next_finds_it(
    sso: RunningHub, provider: RunningProvider
) -> None:
    provider.person("subject-1", preferred_username="Anna Schmidt", email="anna@example.com")
    browser, page = log_in(sso, provider, "subject-1")
    assert (page.status, page.location) == (303, "/-/settings/tokens")
    assert "<h1>Anna-Schmidt</h1>" in browser.get("/-/settings").text
    assert openid.COOKIE not in browser.jar
    provider.person("subject-1", preferred_username="renamed", email="other@example.com")
    again, _ = log_in(sso, provider, "subject-1")
    assert "<h1>Anna-Schmidt</h1>" in again.get("/-/settings").text
    assert "renamed" not in [each.name for each in users.list_users(sso.registry)]


def test_what_the_provider_is_asked_has_state_nonce_and_pkce(
    sso: RunningHub, provider: RunningProvider
) -> None:
    seen = []
    for _ in range(2):
        address = sent_to_provider(Browser(sso.url))
        asked = {name: value[0] for name, value in parse_qs(urlsplit(address).query).items()}
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        assert asked["redirect_uri"] == f"{sso.url}/-/login/openid/back"
        assert set(asked["scope"].split()) == {"openid", "profile", "email"}
        assert "client_secret" not in asked
        seen += [asked["state"], asked["nonce"], asked["code_challenge"]]
    assert len(set(seen)) == 6


def test_the_cookie_of_a_login_is_short_lived_and_not_for_scripts(sso: RunningHub) -> None:
    morsel = Browser(sso.url).get("/-/login/openid").cookies[openid.COOKIE]
    assert (morsel["httponly"], morsel["samesite"].lower()) == (True, "lax")
    assert 0 < int(morsel["max-age"]) <= 600


def test_a_name_that_somebody_has_is_refused_with_a_way_out(
    sso: RunningHub, provider: RunningProvider
) -> None:
    sso.user("taken")
    provider.person("subject-2", preferred_username="taken", email="taken@example.com")
    browser, page = log_in(sso, provider, "subject-2")
    assert page.status == 409
    assert "belongs to somebody else on this hub already" in page.problem
    assert browser.session is None


@pytest.mark.parametrize("name", ["settings", "\u4e2d\u6587", "api"])
def test_a_name_that_cannot_be_one_is_refused(
    sso: RunningHub, provider: RunningProvider, name: str
) -> None:
    provider.person("subject-3", preferred_username=name)
    browser, page = log_in(sso, provider, "subject-3")
    assert (page.status, bool(page.problem), browser.session) == (422, True, None)


def test_a_user_connects_an_account_and_logs_in_by_it(
    sso: RunningHub, provider: RunningProvider
) -> None:
    browser = Browser(sso.url)
    browser.log_in(sso.user("connector"))
    provider.person("subject-4", preferred_username="connector")
    query = urlencode({"connect": browser.csrf()})
    page = browser.get(provider.agree(sent_to_provider(browser, f"?{query}"), "subject-4"))
    assert (page.status, page.location) == (303, "/-/settings")
    assert provider.issuer in browser.get("/-/settings").text
    other, _ = log_in(sso, provider, "subject-4")
    assert "<h1>connector</h1>" in other.get("/-/settings").text
    form = {"issuer": provider.issuer, "subject": "subject-4"}
    assert other.post("/-/settings/disconnect", form).status == 303
    _, page = log_in(sso, provider, "subject-4")
    assert page.status == 409


def test_an_account_is_connected_only_by_a_page_of_the_same_session(
    sso: RunningHub, provider: RunningProvider
) -> None:
    browser, other = Browser(sso.url), Browser(sso.url)
    browser.log_in(sso.user("linked"))
    other.log_in(sso.user("other-linked"))
    for token in ("", "junk", other.csrf(), Browser(sso.url).csrf()):
        page = browser.get(f"/-/login/openid?{urlencode({'connect': token})}")
        assert page.status == 403
    query = urlencode({"connect": browser.csrf()})
    back = provider.agree(sent_to_provider(browser, f"?{query}"), "subject-5")
    other.jar[openid.COOKIE] = browser.jar[openid.COOKIE]
    assert other.get(back).status == 403


def test_an_answer_counts_only_in_the_browser_that_asked_and_once(
    sso: RunningHub, provider: RunningProvider
) -> None:
    provider.person("subject-6", preferred_username="six")
    browser, victim = Browser(sso.url), Browser(sso.url)
    back = provider.agree(sent_to_provider(browser), "subject-6")
    # Login CSRF: a stranger's answer, in a browser that asked for none or for another one.
    assert victim.get(back).status == 403
    sent_to_provider(victim)
    assert victim.get(back).status == 403
    assert victim.session is None
    kept = dict(browser.jar)
    assert browser.get(back).status == 303
    # The code has been used.
    replay = Browser(sso.url, kept)
    assert replay.get(back).status == 403
    assert replay.session is None


def changed(back: str, **values: str | None) -> str:
    parts = urlsplit(back)
    query = {name: value[0] for name, value in parse_qs(parts.query).items()}
    query |= {name: value for name, value in values.items() if value is not None}
    for name in [name for name, value in values.items() if value is None]:
        query.pop(name, None)
    return f"{parts.path}?{urlencode(query)}"


@pytest.mark.parametrize(
    "values",
    [
        {"state": "x"}, {"state": None}, {"code": "x"}, {"code": None}, {"code": ""},
        {"iss": "https://evil.example"}, {"error": "access_denied"},
    ],
)  # fmt: skip
def test_an_answer_that_was_changed_is_refused(
    sso: RunningHub, provider: RunningProvider, values: dict[str, str | None]
) -> None:
    browser = Browser(sso.url)
    back = changed(provider.agree(sent_to_provider(browser), "subject-7"), **values)
    page = browser.get(back)
    assert (page.status, bool(page.problem), browser.session) == (403, True, None)


def test_an_id_token_of_another_login_is_refused(
    sso: RunningHub, provider: RunningProvider
) -> None:
    signer = sso.server._hub.signer
    browser = Browser(sso.url)
    back = provider.agree(sent_to_provider(browser), "subject-8")
    claims = {**signer.verify("openid login", browser.jar[openid.COOKIE]), "nonce": "x" * 32}
    browser.jar[openid.COOKIE] = signer.sign("openid login", claims, 60)
    page = browser.get(back)
    assert (page.status, browser.session) == (403, None)


def test_only_the_browser_that_asked_knows_the_verifier(sso: RunningHub) -> None:
    browser = Browser(sso.url)
    asked = parse_qs(urlsplit(sent_to_provider(browser)).query)
    claims = sso.server._hub.signer.verify("openid login", browser.jar[openid.COOKIE])
    verifier = str(claims["verifier"])
    digest = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    assert asked["code_challenge"] == [digest]
    assert 43 <= len(verifier) <= 128
    assert verifier not in str(asked)


def test_whoever_says_no_at_the_provider_is_not_logged_in(
    sso: RunningHub, provider: RunningProvider
) -> None:
    browser = Browser(sso.url)
    address = sent_to_provider(browser)
    state = parse_qs(urlsplit(address).query)["state"][0]
    # This provider leaves the state out, which RFC 6749 asks for (4.1.2.1).
    page = browser.get(changed(provider.deny(address), state=state))
    assert (page.status, "said no" in page.problem) == (403, True)


def test_a_disabled_user_does_not_get_in_by_the_provider(
    sso: RunningHub, provider: RunningProvider
) -> None:
    provider.person("subject-9", preferred_username="nine")
    log_in(sso, provider, "subject-9")
    accounts.disable(sso.registry, None, "nine", by_shell=True)
    browser, page = log_in(sso, provider, "subject-9")
    assert (page.status, "disabled" in page.problem, browser.session) == (401, True, None)


def test_next_of_a_login_stays_on_the_hub(sso: RunningHub, provider: RunningProvider) -> None:
    provider.person("subject-10", preferred_username="ten")
    browser = Browser(sso.url)
    back = provider.agree(sent_to_provider(browser, "?next=//evil.example"), "subject-10")
    assert browser.get(back).location == "/"


def test_domains_and_groups_keep_others_out(tmp_path: Path, provider: RunningProvider) -> None:
    limits = settings(
        provider, oidc_email_domains="example.com, example.org", oidc_groups="ml,research"
    )
    people = {
        "in": {"email": "a@Example.org", "email_verified": True, "groups": ["x", "ml"]},
        "unverified": {"email": "b@example.org", "email_verified": False, "groups": ["ml"]},
        "unsaid": {"email": "c@example.org", "groups": ["ml"]},
        "elsewhere": {
            "email": "d@example.org.evil.example",
            "email_verified": True,
            "groups": ["ml"],
        },
        "tricky": {"email": "e@example.org@evil.example", "email_verified": True, "groups": ["ml"]},
        "no-group": {"email": "f@example.org", "email_verified": True},
        "other-group": {"email": "g@example.org", "email_verified": True, "groups": ["mlx"]},
        "nothing": {},
    }
    with running_hub(tmp_path / "data", server_settings=limits) as hub:
        for name, claims in people.items():
            provider.person(f"limits-{name}", preferred_username=f"limits-{name}", **claims)
            browser, page = log_in(hub, provider, f"limits-{name}")
            assert page.status == (303 if name == "in" else 403), name
            assert (browser.session is not None) == (name == "in"), name
        made = [each.name for each in users.list_users(hub.registry)]
        assert made == ["admin", "limits-in"]


def test_a_hub_may_take_only_users_that_it_has(tmp_path: Path, provider: RunningProvider) -> None:
    provider.person("closed-1", preferred_username="closed")
    closed = settings(provider, oidc_creates_users=False)
    with running_hub(tmp_path / "data", server_settings=closed) as hub:
        _, page = log_in(hub, provider, "closed-1")
        assert (page.status, "no user of this hub" in page.problem.lower()) == (403, True)
        assert [each.name for each in users.list_users(hub.registry)] == ["admin"]
        invited = tokens.authenticate(hub.registry, hub.user("invited"))
        identities.connect(hub.registry, invited, provider.issuer, "closed-1")
        browser, _ = log_in(hub, provider, "closed-1")
        assert "<h1>invited</h1>" in browser.get("/-/settings").text


def test_a_provider_that_is_away_is_named_and_other_ways_stay(tmp_path: Path) -> None:
    away = ServerSettings(
        oidc_issuer="http://127.0.0.1:9", oidc_client_id="deltahub", stop_grace_s=2
    )
    with running_hub(tmp_path / "data", server_settings=away) as hub:
        browser = Browser(hub.url)
        page = browser.get("/-/login/openid")
        assert (page.status, "provider does not answer" in page.problem) == (503, True)
        browser.log_in(hub.admin_token)


def test_settings_that_do_not_fit_are_refused_without_their_secrets() -> None:
    for given in (
        {"oidc_issuer": "https://id.example.com"},
        {"oidc_issuer": "id.example.com", "oidc_client_id": "x"},
        {"oidc_issuer": "https://id.example.com/?a=b", "oidc_client_id": "x"},
    ):
        with pytest.raises(WrongSetting, match="OIDC"):
            ServerSettings(**given)  # type: ignore[arg-type]
    with pytest.raises(WrongSetting) as raised:
        ServerSettings(signing_key="short-secret")  # type: ignore[arg-type]
    assert "short-secret" not in str(raised.value)


def test_an_id_token_that_the_provider_did_not_sign_is_refused(
    provider: RunningProvider, sso: RunningHub
) -> None:
    asked = Provider(settings(provider))
    now = int(time.time())
    claims = {
        "iss": provider.issuer, "aud": "deltahub", "sub": "x", "nonce": "n", "iat": now,
        "exp": now + 60,
    }  # fmt: skip
    own_key = RSAKey.generate_key(2048, auto_kid=True)
    forged = [
        f"{_part({'alg': 'none'})}.{_part(claims)}.",
        jwt.encode({"alg": "RS256"}, claims, own_key),
        jwt.encode({"alg": "RS256", "kid": own_key.kid}, claims, own_key),
        jwt.encode({"alg": "HS256"}, claims, OctKey.import_key("s" * 32)),
        "junk", "", "a.b.c",
    ]  # fmt: skip
    for token in forged:
        with pytest.raises(Forbidden):
            asked._claims_of({"id_token": token}, "n")


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

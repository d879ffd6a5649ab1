"""Tokens, sessions, organizations and users over the API."""

import pytest

from support.service.hub import RunningHub
from support.web.browser import Browser


def test_a_user_makes_lists_and_revokes_tokens(hub: RunningHub) -> None:
    token = hub.user("api-maker")
    body = {"label": "cluster", "scope": "read", "ttl_s": 3600}
    made = hub.call("POST", "/v1/tokens", token=token, body=body)
    assert made.status == 201
    secret = made.json()["token"]
    items = hub.call("GET", "/v1/tokens", token=secret).json()["items"]
    assert [(each["label"], each["scope"]) for each in items] == [
        ("", "write"),
        ("cluster", "read"),
    ]
    assert secret not in str(items)
    path = f"/v1/tokens/{items[1]['id']}"
    assert hub.call("DELETE", path, token=hub.user("api-thief")).status == 404
    assert hub.call("DELETE", path, token=secret).status == 403
    assert hub.call("DELETE", path, token=token).status == 204
    assert hub.call("GET", "/v1/tokens", token=secret).status == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"label": "x", "scope": "admin"}, 403), ({"label": "x", "scope": "all"}, 422),
        ({"label": "x" * 201}, 422), ({"label": "x", "ttl_s": 0}, 422), ({}, 422),
        ({"label": "x", "ttl_s": 10**15}, 422), ({"label": "x", "more": 1}, 422),
    ],
)  # fmt: skip
def test_a_token_that_may_not_be_made_is_refused(
    hub: RunningHub, body: dict[str, object], status: int
) -> None:
    token = hub.user(f"api-refused-{abs(hash(str(body))) % 10**8}")
    assert hub.call("POST", "/v1/tokens", token=token, body=body).status == status


def test_sessions_are_listed_and_ended(hub: RunningHub) -> None:
    token = hub.user("api-sitter")
    browser = Browser(hub.url, headers={"User-Agent": "tried"})
    browser.log_in(token)
    (item,) = hub.call("GET", "/v1/sessions", token=token).json()["items"]
    assert (item["agent"], item["address"]) == ("tried", "127.0.0.1")
    path = f"/v1/sessions/{item['id']}"
    assert hub.call("DELETE", path, token=hub.user("api-other")).status == 404
    assert hub.call("DELETE", path, token=hub.admin_token).status == 404
    assert hub.call("DELETE", path, token=token).status == 204
    assert browser.get("/-/settings").status == 303


def test_an_organization_is_managed(hub: RunningHub) -> None:
    founder, member, eve = (hub.user(f"api-{name}") for name in ("founder", "member", "eve"))
    place = "/v1/organizations"
    assert hub.call("POST", place, token=founder, body={"name": "api-lab"}).status == 201
    path = f"{place}/api-lab/members/api-member"
    for role in ("read", "write"):
        assert hub.call("PUT", path, token=founder, body={"role": role}).status == 204
    assert hub.call("GET", f"{place}/api-lab", token=member).json() == {
        "name": "api-lab",
        "members": [
            {"user": "api-founder", "role": "admin"}, {"user": "api-member", "role": "write"},
        ],
    }  # fmt: skip
    page = hub.call("GET", f"{place}/api-lab?limit=1&after=api-founder", token=member).json()
    assert [each["user"] for each in page["members"]] == ["api-member"]
    assert hub.call("GET", f"{place}/api-lab", token=eve).status == 404
    assert hub.call("GET", f"{place}/api-lab").status == 401
    assert hub.call("PUT", path, token=member, body={"role": "admin"}).status == 403
    assert hub.call("DELETE", path, token=member).status == 204
    own = f"{place}/api-lab/members/api-founder"
    assert hub.call("DELETE", own, token=founder).code == "conflict"


def test_administrators_manage_users(hub: RunningHub) -> None:
    admin = hub.admin_token
    made = hub.call("POST", "/v1/users", token=admin, body={"name": "api-new"})
    assert made.status == 201
    assert Browser(hub.url).get(made.json()["path"]).status == 200
    again = hub.call("POST", "/v1/users/api-new/invitation", token=admin)
    assert Browser(hub.url).get(made.json()["path"]).status == 404
    assert Browser(hub.url).get(again.json()["path"]).status == 200
    change = "/v1/users/api-new"
    assert hub.call("PATCH", change, token=admin, body={"is_disabled": True}).status == 204
    listed = hub.call("GET", "/v1/users?after=api-mz&limit=1", token=admin).json()["items"]
    assert [(each["name"], each["disabled_at"] is None) for each in listed] == [("api-new", False)]
    assert hub.call("PATCH", change, token=admin, body={"is_disabled": False}).status == 204
    assert hub.call("DELETE", change, token=admin).json() == {"without_administrator": []}
    assert hub.call("DELETE", change, token=admin).status == 404


def test_nobody_else_manages_users(hub: RunningHub) -> None:
    token = hub.user("api-nobody")
    for method, path, body in (
        ("GET", "/v1/users", None), ("POST", "/v1/users", {"name": "x", "is_admin": True}),
        ("POST", "/v1/users/admin/invitation", None), ("DELETE", "/v1/users/api-nobody", None),
        ("PATCH", "/v1/users/api-nobody", {"is_disabled": False}),
    ):  # fmt: skip
        assert hub.call(method, path, token=token, body=body).status == 403
        assert hub.call(method, path, body=body).status == 401

"""Renamed models: bases that named them by the old name, and links to it."""

import json
from hashlib import sha1

import pytest

from support.service.hf_door import create_model, error_of, files_of, header, send_commit, small
from support.service.hub import Answer, RunningHub


@pytest.fixture
def name(hub: RunningHub, request: pytest.FixtureRequest) -> str:
    name = "admin/m-" + sha1(request.node.name.encode()).hexdigest()[:12]
    answer = create_model(hub, name)
    assert answer.status == 200, answer.body
    assert answer.json()["url"] == f"{hub.url}/{name}"
    return name


def move(hub: RunningHub, name: str, to: str) -> Answer:
    body = {"fromRepo": name, "toRepo": to, "type": "model"}
    return hub.call("POST", "/api/repos/move", token=hub.admin_token, body=body)


def test_a_model_moves_with_all_that_is_in_it(hub: RunningHub, name: str) -> None:
    send_commit(hub, name, header(), small("a.txt", b"a"))
    body = {"fromRepo": name, "toRepo": f"{name}-moved", "type": "model"}
    assert hub.call("POST", "/api/repos/move", token=hub.admin_token, body=body).status == 200
    assert files_of(hub, f"{name}-moved") == {"a.txt": b"a"}
    back = {"fromRepo": f"{name}-moved", "toRepo": "admin/w-taken", "type": "model"}
    create_model(hub, "admin/w-taken")
    assert hub.call("POST", "/api/repos/move", token=hub.admin_token, body=back).status == 409
    gone = {"name": f"{name.partition('/')[2]}-moved", "organization": "admin"}
    for status in (200, 404):
        answer = hub.call("DELETE", "/api/repos/delete", token=hub.admin_token, body=gone)
        assert answer.status == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/models/{name}"),
        ("GET", "/api/models/{name}/tree/main?recursive=true&expand=false"),
        ("HEAD", "/{name}/resolve/main/a%20b.txt"),
        ("POST", "/api/models/{name}/preupload/main"),
        ("POST", "/{name}.git/info/lfs/objects/batch"),
        ("GET", "/v1/repositories/{name}/revision"),
        ("GET", "/{name}/tree/main"),
    ],
)
def test_an_old_name_leads_to_the_new_one(
    hub: RunningHub, name: str, method: str, path: str
) -> None:
    now = f"{name}-now"
    assert move(hub, name, now).status == 200
    body = {"files": [], "operation": "upload", "objects": []} if method == "POST" else None
    for old in (name, name.upper()):
        answer = hub.call(method, path.format(name=old), token=hub.admin_token, body=body)
        assert (answer.status, answer.headers["Location"]) == (307, path.format(name=now))
    # Whoever deletes the old name may mean something else.
    answer = hub.call("DELETE", f"/v1/repositories/{name}", token=hub.admin_token)
    assert error_of(answer)[0] == 404
    assert f"it is {now} now" in answer.json()["error"]["message"]


def test_an_old_name_tells_strangers_nothing_and_another_model_may_take_it(
    hub: RunningHub, name: str
) -> None:
    now = f"{name}-now"
    assert move(hub, name, now).status == 200
    hidden = {"private": True}
    hub.call("PUT", f"/api/models/{now}/settings", token=hub.admin_token, body=hidden)
    answer = hub.call("GET", f"/api/models/{name}")
    assert answer.status == 404
    assert "now" not in answer.body.decode()
    assert create_model(hub, name).status == 200
    assert hub.call("GET", f"/api/models/{name}").json()["id"] == name
    gone = {"name": name.partition("/")[2], "organization": "admin"}
    assert hub.call("DELETE", "/api/repos/delete", token=hub.admin_token, body=gone).status == 200
    assert hub.call("GET", f"/api/models/{name}", token=hub.admin_token).status == 404


def test_names_are_found_whatever_their_case_and_keep_their_spelling(
    hub: RunningHub, name: str
) -> None:
    spelt = f"{name}-Spelt"
    assert create_model(hub, spelt).status == 200
    send_commit(hub, spelt.lower(), header(), small("a.txt", b"a"))
    assert hub.call("GET", f"/api/models/{spelt.upper()}").json()["id"] == spelt
    assert hub.call("GET", f"/v1/repositories/{spelt.upper()}").json()["name"] == spelt
    assert files_of(hub, spelt.lower()) == {"a.txt": b"a"}
    found = hub.call("GET", "/api/models?author=ADMIN&limit=1000").json()
    assert spelt in {one["id"] for one in found}
    second = create_model(hub, spelt.lower())
    assert (second.status, second.json()["url"]) == (409, f"{hub.url}/{spelt}")
    assert error_of(move(hub, name, spelt.upper().replace("ADMIN", "admin")))[0] == 409
    # It may change its own spelling.
    assert move(hub, spelt, spelt.lower()).status == 200
    assert hub.call("GET", f"/api/models/{spelt}").json()["id"] == spelt.lower()


def test_a_private_model_stays_in_its_namespace(hub: RunningHub, name: str) -> None:
    token = hub.user(f"p-{name[-6:]}")
    mine = f"p-{name[-6:]}/m"
    assert create_model(hub, mine, token=token, private=True).status == 200
    body = {"fromRepo": mine, "toRepo": f"{name}-x"}
    answer = hub.call("POST", "/api/repos/move", token=hub.admin_token, body=body)
    assert error_of(answer) == (409, "conflict")


def test_what_was_made_from_a_model_names_it_as_it_is_called_now(
    hub: RunningHub, name: str
) -> None:
    base, now = f"{name}-base", f"{name}-moved"
    assert create_model(hub, base).status == 200
    card = f"---\nbase_model: {base}\ntags: [made]\n---\n".encode()
    config = json.dumps({"peft_type": "LORA", "base_model_name_or_path": base}).encode()
    adapter = f"{name}-adapter"
    assert create_model(hub, adapter).status == 200
    send_commit(hub, name, header(), small("README.md", card))
    send_commit(hub, adapter, header(), small("adapter_config.json", config))

    def listed(of: str) -> set[str]:
        found = hub.call("GET", f"/api/models?filter=base_model:{of}&limit=1000").json()
        return {one["id"] for one in found}

    def declared(of: str, token: str | None = None) -> list[tuple[str, str | None]]:
        paths = (f"/v1/repositories/{of}/info", f"/v1/repositories/{of}/revision")
        bases = [hub.call("GET", path, token=token).json()["base"] for path in paths]
        return [(one["declared"], one["commit"]) for one in bases]

    commit = hub.call("GET", f"/api/models/{base}").json()["sha"]
    assert (listed(base), listed(now)) == ({name, adapter}, set())
    assert move(hub, base, now).status == 200
    assert (listed(base), listed(now)) == (set(), {name, adapter})
    for each in (name, adapter):
        assert declared(each) == [(now, commit)] * 2
    # The card still holds the old name. The adapter has no card, so the hub shows the new name.
    shown = [hub.call("GET", f"/api/models/{each}").json() for each in (name, adapter)]
    assert [one["cardData"]["base_model"] for one in shown] == [base, now]
    # While no model has the old name, sending the card again, as trainers do, changes nothing. A
    # new model with the old name does not become the base.
    send_commit(hub, name, header(), small("README.md", card + b"more"))
    assert declared(name) == [(now, commit)] * 2
    assert create_model(hub, base).status == 200
    assert (listed(base), listed(now)) == (set(), {name, adapter})
    assert declared(adapter) == [(now, commit)] * 2
    # A caller who may not read the base does not learn its new name.
    settings = f"/api/models/{now}/settings"
    hidden = hub.call("PUT", settings, token=hub.admin_token, body={"private": True})
    assert hidden.status == 200
    assert declared(adapter) == [(base, None)] * 2
    assert declared(adapter, hub.admin_token) == [(now, commit)] * 2
    assert (listed(now), adapter in listed(base)) == (set(), False)


def test_the_revision_of_a_base_stays_with_its_new_name(hub: RunningHub, name: str) -> None:
    commit = hub.call("GET", f"/api/models/{name}").json()["sha"]
    tuned = f"{name}-tuned"
    assert create_model(hub, tuned).status == 200
    body = {"ref": "main", "operations": [], "base": f"{name}@{commit[:8]}"}
    parent = {"parent": hub.call("GET", f"/api/models/{tuned}").json()["sha"]}
    sent = hub.call(
        "POST", f"/v1/repositories/{tuned}/commits", token=hub.admin_token, body=body | parent
    )
    assert sent.status == 201, sent.body
    assert move(hub, name, f"{name}-x").status == 200
    base = hub.call("GET", f"/v1/repositories/{tuned}/info").json()["base"]
    assert (base["declared"], base["commit"]) == (f"{name}-x@{commit[:8]}", commit)

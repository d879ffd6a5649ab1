"""A hub whose public address has a path, and pages of other sites that may call it."""

import json
import re
from collections.abc import Iterator
from hashlib import sha256

import pytest

from deltahub.server.settings import ServerSettings
from support.service.hf_door import batch, create_model, header, send_commit, small
from support.service.hub import RunningHub, running_hub

PUBLIC = "https://models.example/the/hub"


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    folder = tmp_path_factory.mktemp("below") / "data"
    origins = "https://app.example, http://localhost:3000"
    settings = ServerSettings(stop_grace_s=2, public_url=f"{PUBLIC}/", cors_origins=origins)
    with running_hub(folder, server_settings=settings) as hub:
        create_model(hub, "admin/m")
        send_commit(hub, "admin/m", header(), small("README.md", b"[x](d/x.md)"), small("b", b"b"))
        create_model(hub, "admin/n")
        yield hub


def test_every_link_of_the_apis_lies_below_the_path(below: RunningHub) -> None:
    token = below.admin_token
    for prefix in ("/the/hub", ""):  # a proxy may take the path away
        made = below.call("GET", f"{prefix}/api/models?limit=1")
        assert made.headers["Link"].startswith(f"<{PUBLIC}/api/models?limit=1&cursor=")
        tree = below.call("GET", f"{prefix}/api/models/admin/m/tree/main?limit=1")
        assert tree.headers["Link"].startswith(f"<{PUBLIC}/api/models/admin/m/tree/")
        commits = below.call("GET", f"{prefix}/api/models/admin/m/commits/main?limit=1")
        assert commits.headers["Link"].startswith(f"<{PUBLIC}/api/models/admin/m/commits/")
        xet = below.call("GET", f"{prefix}/api/models/admin/m/xet-read-token/main", token=token)
        assert xet.json()["casUrl"].startswith(f"{PUBLIC}/cas/")
        assert xet.headers["X-Xet-Cas-Url"] == xet.json()["casUrl"]
    (action,) = batch(below, "admin/m", (sha256(b"x").hexdigest(), 1)).json()["objects"]
    assert action["actions"]["upload"]["href"].startswith(f"{PUBLIC}/lfs/objects/")
    again = create_model(below, "admin/m")
    assert again.json()["url"] == f"{PUBLIC}/admin/m"


def test_redirects_lie_below_the_path(below: RunningHub) -> None:
    body = {"fromRepo": "admin/n", "toRepo": "admin/now"}
    moved = below.call("POST", "/api/repos/move", token=below.admin_token, body=body)
    assert moved.status == 200
    for path in ("/api/models/{}", "/v1/repositories/{}", "/{}"):
        answer = below.call("GET", "/the/hub" + path.format("admin/n"))
        where = "/the/hub" + path.format("admin/now")
        assert (answer.status, answer.headers["Location"]) == (307, where)
    assert below.call("GET", "/the/hub/login").headers["Location"] == "/the/hub/-/login"
    answer = below.call("GET", "/the/hub/v1/repositories/admin/now/")
    assert (answer.status, answer.headers["Location"]) == (
        307,
        f"{PUBLIC}/v1/repositories/admin/now",
    )


@pytest.mark.parametrize("path", ["", "/", "/-/login", "/admin/m", "/admin/m/use", "/docs"])
def test_pages_link_below_the_path(below: RunningHub, path: str) -> None:
    answer = below.call("GET", f"/the/hub{path}")
    assert answer.status == 200
    text = answer.body.decode()
    found = re.findall(r"""(?:href|src|action|data-[a-z-]+)=["'](/[^"']*)["']""", text)
    assert found
    assert [each for each in found if not each.startswith("/the/hub")] == []
    for each in found:
        if "/-/assets/" in each:
            assert below.call("GET", each.partition("#")[0]).status == 200


def test_the_session_cookie_is_for_the_path_alone(below: RunningHub) -> None:
    page = below.call("GET", "/the/hub/-/login").body.decode()
    csrf = re.search(r'name="csrf" value="([^"]+)"', page)
    assert csrf is not None
    form = f"csrf={csrf[1]}&token={below.admin_token}"
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = below.call("POST", "/the/hub/-/login/token", body=form.encode(), headers=headers)
    assert answer.status == 303, answer.body
    assert answer.headers["Set-Cookie"].startswith("__Secure-")
    assert "Path=/the/hub;" in answer.headers["Set-Cookie"]


def test_pages_of_named_origins_may_call_the_hub(below: RunningHub) -> None:
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = below.call("OPTIONS", "/api/models/admin/m/preupload/main", headers=asked)
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "authorization" in answer.headers["Access-Control-Allow-Headers"].lower()
    for path, status in (("/admin/m/resolve/main/b", 200), ("/admin/m/resolve/main/no", 404)):
        answer = below.call("GET", path, headers={"Origin": "https://app.example"})
        assert answer.status == status
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert "Access-Control-Allow-Credentials" not in answer.headers
        exposed = answer.headers["Access-Control-Expose-Headers"]
        for each in ("ETag", "Link", "X-Repo-Commit", "X-Error-Code", "X-Linked-Size"):
            assert each in exposed
    other = below.call("GET", "/admin/m/resolve/main/b", headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in other.headers
    assert json.loads(below.call("GET", "/api/models/admin/m").body)["id"] == "admin/m"

"""Permissions over HTTP, answers to bad requests, and the common form of all errors."""

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from deltahub.codecs.errors import CodecError
from deltahub.registry.access import tokens
from deltahub.registry.errors import RegistryError
from deltahub.registry.storage.base import StoreError
from deltahub.server.app import create_app
from deltahub.server.errors import STATUS_OF, wire_code
from support.service.hub import RunningHub

SNAPSHOT = Path(__file__).parents[3] / "docs" / "openapi.json"


def codes(root: type) -> Iterator[str]:
    yield root.code  # type: ignore[attr-defined]  # every base class of errors has one
    for child in root.__subclasses__():
        yield from codes(child)


def test_every_error_has_a_status() -> None:
    known = {code for root in (RegistryError, CodecError, StoreError) for code in codes(root)}
    ours = {code for code in known if not code.startswith("test_")}
    assert {code for code in ours if wire_code(code) not in STATUS_OF} == set()


def test_the_api_is_the_one_that_was_reviewed(hub: RunningHub) -> None:
    current = json.loads(json.dumps(create_app(hub.registry).openapi()))
    recorded = json.loads(SNAPSHOT.read_text())
    assert current == recorded, "run: python -m deltahub.server.openapi > docs/openapi.json"


def test_operations_are_named_verb_noun_and_once(hub: RunningHub) -> None:
    names = [
        operation["operationId"]
        for path in create_app(hub.registry).openapi()["paths"].values()
        for operation in path.values()
    ]
    assert len(names) == len(set(names))
    verbs = "get list create update delete put head query accept cancel retry set take prune"
    verbs += " approve reject"
    assert [name for name in names if name.split("_")[0] not in verbs.split()] == []


def test_the_documentation_is_served(hub: RunningHub) -> None:
    answer = hub.call("GET", "/docs")
    assert answer.status == 200
    assert b"/openapi.json" in answer.body


def test_a_token_says_whose_it_is(hub: RunningHub) -> None:
    token = hub.user("whoami-user", "read")
    free = dict.fromkeys(("repositories", "stored_bytes", "logical_bytes"))
    none = dict.fromkeys(free, 0)
    assert hub.call("GET", "/v1/whoami", token=token).json() == {
        "name": "whoami-user",
        "is_admin": False,
        "scope": "read",
        "namespaces": [{"name": "whoami-user", "role": "admin", "used": none, "limits": free}],
    }


@pytest.mark.parametrize(
    "header",
    ["Bearer dh_wrong", "Bearer ", "Bearer", "Basic YTpi", "dh_wrong", "Bearer \xff\xfe", ""],
)
def test_a_bad_token_is_refused_even_where_none_is_needed(hub: RunningHub, header: str) -> None:
    answer = hub.call("GET", "/v1/repositories", headers={"Authorization": header})
    assert (answer.status, answer.code) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_a_revoked_token_is_refused_at_once(hub: RunningHub) -> None:
    token = hub.user("revoked-user")
    assert hub.call("GET", "/v1/whoami", token=token).status == 200
    for known in tokens.list_tokens(hub.registry, "revoked-user"):
        tokens.revoke_token(hub.registry, known.id)
    assert hub.call("GET", "/v1/whoami", token=token).status == 401


def test_a_private_repository_does_not_exist_for_others(hub: RunningHub) -> None:
    owner, other = hub.user("owner"), hub.user("stranger")
    hub.create("owner/secret", private=True, token=owner)
    hub.commit("owner/secret", {"a.txt": b"secret"}, token=owner)
    for path in ("", "/refs", "/revision", "/files/a.txt", "/info"):
        for token in (other, None):
            hidden = hub.call("GET", f"/v1/repositories/owner/secret{path}", token=token)
            absent = hub.call("GET", f"/v1/repositories/owner/absent{path}", token=token)
            assert (hidden.status, hidden.code) == (404, "repository_not_found"), path
            assert hidden.message.replace("secret", "absent") == absent.message
    assert hub.call("GET", "/v1/repositories/owner/secret/files/a.txt", token=owner).status == 200
    for token in (other, None):
        page = hub.call("GET", "/v1/repositories?limit=1000", token=token).json()
        assert "owner/secret" not in {item["name"] for item in page["items"]}


def test_a_public_repository_can_be_read_by_all_and_written_by_few(hub: RunningHub) -> None:
    owner, other = hub.user("publisher"), hub.user("passer-by")
    hub.create("publisher/open", token=owner)
    hub.commit("publisher/open", {"a.txt": b"open"}, token=owner)
    path = "/v1/repositories/publisher/open"
    assert hub.call("GET", f"{path}/files/a.txt").body == b"open"
    body = {"operations": [{"op": "delete", "path": "a.txt"}]}
    assert hub.call("POST", f"{path}/commits", token=other, body=body).status == 403
    assert hub.call("POST", f"{path}/commits", body=body).status == 401
    for query in ({"files": []}, {"files": [{"sha256": "ab" * 32, "size": 1}]}):
        assert hub.call("POST", f"{path}/files/query", token=other, body=query).status == 403
        assert hub.call("POST", f"{path}/files/query", body=query).status == 401
    assert hub.call("DELETE", path, token=other).status == 403
    reading = tokens.create_token(hub.registry, "publisher", "read")
    assert hub.call("POST", f"{path}/commits", token=reading, body=body).code == "forbidden"
    assert hub.call("DELETE", path, token=owner).status == 204
    assert hub.call("GET", path).status == 404


def test_a_name_that_is_taken_or_cannot_be_is_refused(hub: RunningHub) -> None:
    hub.create("admin/taken")
    cases = {"admin/taken": 409, "admin/a/b": 422, "nobody/x": 403, "admin/..": 422, "x": 422}
    for name, status in {**cases, f"admin/{'x' * 10_000}": 422}.items():
        body = {"name": name}
        answer = hub.call("POST", "/v1/repositories", token=hub.admin_token, body=body)
        assert answer.status == status, (name[:50], answer.body)
        assert len(answer.body) < 2000


def test_pages_of_repositories_follow_each_other(hub: RunningHub) -> None:
    token = hub.user("pager")
    for i in range(5):
        hub.create(f"pager/r{i}", token=token)
    names, cursor = [], ""
    while cursor is not None:
        path = f"/v1/repositories?namespace=pager&limit=2{cursor and f'&cursor={cursor}'}"
        page = hub.call("GET", path).json()
        names += [item["name"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert names == [f"pager/r{i}" for i in (4, 3, 2, 1, 0)]
    assert hub.call("GET", "/v1/repositories?limit=0").code == "invalid_request"
    assert hub.call("GET", "/v1/repositories?cursor=x").code == "invalid_request"


def test_a_commit_shows_in_refs_revision_and_repository(hub: RunningHub) -> None:
    hub.create("admin/shown")
    made = hub.commit("admin/shown", {"a.txt": b"one"}, message="first", base="far/away")
    path = "/v1/repositories/admin/shown"
    revision = hub.call("GET", f"{path}/revision").json()
    assert revision["commit"] == made["commit"]
    assert revision["parent"] is None
    assert (revision["message"], revision["author"]) == ("first", "admin")
    assert revision["base"] == {"declared": "far/away", "commit": None}
    assert revision["job_id"] == made["job_id"]
    (entry,) = revision["entries"]
    assert (entry["path"], entry["size"]) == ("a.txt", 3)
    assert entry["sha256"] == sha256(b"one").hexdigest()
    assert entry["mode"] == "regular"
    assert entry["etag"] == entry["git_blob_id"]
    assert entry["state"] == "landed"
    refs = hub.call("GET", f"{path}/refs").json()["items"]
    assert refs == [{"kind": "branch", "name": "main", "commit": made["commit"]}]
    assert hub.call("GET", path).json()["head"] == made["commit"]
    again = hub.commit("admin/shown", {"a.txt": b"one"})
    assert (again["commit"], again["changed"]) == (made["commit"], False)


def test_a_private_base_is_not_named_to_those_who_may_not_read_it(hub: RunningHub) -> None:
    owner = hub.user("discreet")
    hub.create("discreet/base", private=True, token=owner)
    base = hub.commit("discreet/base", {"a": b"1"}, token=owner)
    hub.create("discreet/child", token=owner)
    hub.commit("discreet/child", {"b": b"2"}, token=owner, base="discreet/base")
    path = "/v1/repositories/discreet/child/revision"
    assert hub.call("GET", path, token=owner).json()["base"]["commit"] == base["commit"]
    assert hub.call("GET", path).json()["base"]["commit"] is None


def test_of_two_pushes_to_one_ref_at_once_one_is_told_to_look_again(hub: RunningHub) -> None:
    hub.create("admin/race")
    head = hub.commit("admin/race", {"a": b"0"})["commit"]
    uploads = [hub.upload(data) for data in (b"first", b"second!")]

    def push(i: int) -> int:
        size = len((b"first", b"second!")[i])
        body = {
            "parent": head,
            "operations": [{"op": "add", "path": "a", "sha256": uploads[i], "size": size}],
        }
        path = "/v1/repositories/admin/race/commits"
        answer = hub.call("POST", path, token=hub.admin_token, body=body)
        assert answer.code in (None, "ref_moved")
        return answer.status

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(push, range(2))) == [201, 412]
    revision = hub.call("GET", "/v1/repositories/admin/race/revision").json()
    assert revision["parent"] == head


def test_a_commit_cannot_name_what_was_not_uploaded(hub: RunningHub) -> None:
    hub.create("admin/claims")
    theirs = hub.upload(b"of another user", hub.user("claimed"))
    for digest, size in (("ab" * 32, 5), (theirs, 15)):
        body = {"operations": [{"op": "add", "path": "a", "sha256": digest, "size": size}]}
        path = "/v1/repositories/admin/claims/commits"
        answer = hub.call("POST", path, token=hub.admin_token, body=body)
        assert (answer.status, answer.code) == (404, "upload_not_found")


def test_a_hub_says_which_files_need_not_be_uploaded(hub: RunningHub) -> None:
    hub.create("admin/source")
    hub.create("admin/sink")
    hub.commit("admin/source", {"a": b"committed"})
    wanted = [hub.upload(b"uploaded"), *(sha256(x).hexdigest() for x in (b"committed", b"absent"))]
    path = "/v1/repositories/admin/sink/files/query"
    sizes = (8, 9, 6)
    body = {"files": [{"sha256": wanted[i], "size": sizes[i]} for i in range(3)]}
    assert hub.call("POST", path, token=hub.admin_token, body=body).json() == {"have": wanted[:2]}
    for wrong in ({"files": [["ab" * 32, 1]]}, {"files": [{"sha256": "AB" * 32, "size": 1}]}, {}):
        answer = hub.call("POST", path, token=hub.admin_token, body=wrong)
        assert (answer.status, answer.code) == (422, "invalid_request")


@pytest.mark.parametrize(
    "path", ["../a", "/etc/passwd", "a/../b", "a\0b", "a" * 10_000, "", "a//b", "./a", "\ud800"]
)
def test_a_path_that_could_harm_is_refused(hub: RunningHub, path: str) -> None:
    digest = hub.upload(b"x")
    body = {"operations": [{"op": "add", "path": path, "sha256": digest, "size": 1}]}
    url = "/v1/repositories/admin/files-of-evil/commits"
    hub.call(
        "POST", "/v1/repositories", token=hub.admin_token, body={"name": "admin/files-of-evil"}
    )
    answer = hub.call("POST", url, token=hub.admin_token, body=body)
    assert answer.status == 422, answer.body
    assert answer.code in ("invalid_path", "invalid_request")
    assert len(answer.body) < 2000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"operations": "x"}',
        b'{"operations": [], "surprise": 1}',
        b'{"operations": [{"op": "move", "path": "a"}]}',
        b'{"operations": [{"op": "add", "path": "a", "sha256": "zz", "size": 1}]}',
        b'{"operations": [{"op": "add", "path": "a", "sha256": "%s", "size": -1}]}' % (b"a" * 64),
        b'{"operations": [{"op": "add", "path": "a", "sha256": "%s", "size": 1.5}]}' % (b"a" * 64),
        b"[" * 50_000,
        b'{"parent": "HEAD", "operations": []}',
    ],
)
def test_a_body_that_makes_no_sense_is_refused_in_one_sentence(
    hub: RunningHub, body: bytes
) -> None:
    answer = hub.call(
        "POST",
        "/v1/repositories/admin/any/commits",
        token=hub.admin_token,
        body=body,
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status, answer.code) == (422, "invalid_request"), answer.body
    assert 0 < len(answer.message) < 3000
    assert "Traceback" not in answer.message


def test_a_huge_body_is_refused_before_it_is_parsed(hub: RunningHub) -> None:
    body = b'{"name": "' + b"x" * 200_000 + b'"}'
    answer = hub.call("POST", "/v1/repositories", token=hub.admin_token, body=body)
    assert (answer.status, answer.code) == (413, "limit_exceeded")
    assert "100000" in answer.message


def test_a_huge_body_in_pieces_is_refused_too(hub: RunningHub) -> None:
    head = (
        "POST /v1/repositories HTTP/1.1\r\nHost: hub\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {hub.admin_token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(hub.address, timeout=20) as connection:
        connection.sendall(head.encode())
        for _ in range(3):
            connection.sendall(b"c350\r\n" + b"[" * 50_000 + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "begin", [b"GET /v1/health HTTP/1.1\r\n", b"POST /v1/repositories HTTP/1.1\r\n"]
)
def test_headers_and_trailers_without_an_end_are_refused(hub: RunningHub, begin: bytes) -> None:
    if begin.startswith(b"POST"):  # the lines that follow are trailers
        begin += b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    with socket.create_connection(hub.address, timeout=20) as connection:
        connection.sendall(begin)
        try:
            for _ in range(100):
                connection.sendall(b"X-Filler: " + b"x" * 2000 + b"\r\n")
            is_refused = connection.recv(1000).startswith(b"HTTP/1.1 400 ")
        except ConnectionError:  # refused before all of it was read
            is_refused = True
    assert is_refused


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/metrics/whatever", 404, "not_found"),
        ("GET", "/v1/repositories/a/b/nothing", 404, "not_found"),
        ("PATCH", "/v1/repositories", 405, "method_not_allowed"),
        ("GET", "/v1/jobs/nothing", 404, "job_not_found"),
        ("POST", "/v1/jobs/nothing/cancel", 404, "job_not_found"),
        ("GET", "/v1/metrics", 401, "unauthorized"),
        ("GET", "/v1/whoami", 401, "unauthorized"),
    ],
)
def test_errors_always_look_the_same(
    hub: RunningHub, method: str, path: str, status: int, code: str
) -> None:
    token = None if code == "unauthorized" else hub.admin_token
    answer = hub.call(method, path, token=token)
    assert (answer.status, answer.code) == (status, code)
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"code", "message"}


def test_the_counters_count_what_went_over_the_wire(hub: RunningHub) -> None:
    def metrics() -> dict[str, int]:
        found: dict[str, int] = hub.call("GET", "/v1/metrics", token=hub.admin_token).json()
        return found

    hub.create("admin/counted")
    data = b"c" * 300_000
    before = metrics()
    hub.commit("admin/counted", {"f.bin": data})
    between = metrics()
    assert hub.call("GET", "/v1/repositories/admin/counted/files/f.bin").body == data
    # The thread that sends a file counts its bytes once the socket has taken them.
    deadline, n_looks = time.monotonic() + 10, 1
    while (after := metrics())["sent_bytes"] < between["sent_bytes"] + len(data):
        assert time.monotonic() < deadline, after
        n_looks += 1
    spans = ((before, between), (between, after))
    sent = [b["sent_bytes"] - a["sent_bytes"] for a, b in spans]
    received = [b["received_bytes"] - a["received_bytes"] for a, b in spans]
    assert 300_000 < received[0] < 303_000
    assert 300_000 < sent[1] < 302_000 + n_looks * 1000
    assert (sent[0] < 3000, received[1] < 1500 * n_looks) == (True, True)
    assert after["requests"] - between["requests"] == 1 + n_looks
    assert hub.call("GET", "/v1/metrics", token=hub.user("not-admin")).status == 403


def test_a_job_is_seen_and_cancelled_by_its_owner_alone(hub: RunningHub) -> None:
    owner, other = hub.user("job-owner"), hub.user("job-other")
    hub.create("job-owner/r", token=owner)
    job_id = hub.commit("job-owner/r", {"a": b"job"}, token=owner)["job_id"]
    path = f"/v1/jobs/{job_id}"
    job = hub.call("GET", path, token=owner).json()
    assert (job["kind"], job["state"], job["error"]) == ("ingest", "queued", None)
    for token in (other, None):
        assert hub.call("GET", path, token=token).status == 404
        assert hub.call("POST", f"{path}/cancel", token=token).status in (401, 404)
    assert hub.call("POST", f"{path}/cancel", token=owner).json()["state"] == "cancelled"
    # The file can be read without its ingest, from the upload.
    assert hub.call("GET", "/v1/repositories/job-owner/r/files/a").body == b"job"


def test_a_recipe_is_not_ready_before_the_ingest(hub: RunningHub) -> None:
    hub.create("admin/waiting")
    hub.commit("admin/waiting", {"model.bin": b"not ingested yet"})
    for kind in ("recipes", "recipe-bytes"):
        answer = hub.call("GET", f"/v1/repositories/admin/waiting/{kind}/model.bin")
        assert (answer.status, answer.code) == (409, "not_ready")
    info = hub.call("GET", "/v1/repositories/admin/waiting/info").json()
    assert info["files"][0]["state"] == "landed"
    assert info["totals"] == {"size": 16, "own": 16, "shared": 0, "base": 0}


def test_the_documentation_page_loads_nothing_from_elsewhere(hub: RunningHub) -> None:
    page = hub.call("GET", "/docs")
    assert page.status == 200
    links = re.findall(rb'(?:src|href)="([^"]+)"', page.body)
    assert links
    for link in links:
        assert link.startswith(b"/docs-assets/"), link
        assert hub.call("GET", link.decode()).status == 200

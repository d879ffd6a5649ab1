"""The Xet service over HTTP: its permissions and answers."""

import http.client
import json
import time
from hashlib import sha256
from random import Random
from typing import Any

import pytest

from deltahub.registry.access import organizations, tokens
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.uploads import landing
from deltahub.registry.xet.hashes import chunk_hash, to_text
from deltahub.server.signing import Signer
from support.registry.opened import caller, end_token
from support.registry.xet import FileOf, ShardOf, TermOf, XorbOf, cut
from support.service.hub import Answer, RunningHub

ONE = XorbOf(cut(Random(3).randbytes(300_000), 60_000), scheme=1)
FILE = FileOf([TermOf(ONE, 1), TermOf(ONE, 0, 2)])


class Cas:
    """A client of the Xet service of one repository."""

    def __init__(self, hub: RunningHub, name: str, token: str | None, access: str) -> None:
        self.hub = hub
        answer = hub.call("GET", f"/api/models/{name}/xet-{access}-token/main", token=token)
        assert answer.status == 200, answer.body
        self.answer = answer
        self.url = answer.json()["casUrl"].removeprefix(hub.url)
        self.token = answer.json()["accessToken"]

    def call(self, method: str, path: str, body: bytes | None = None, **more: Any) -> Answer:
        return self.hub.call(method, self.url + path, token=self.token, body=body, **more)

    def send(self, xorb: XorbOf) -> Answer:
        return self.call("POST", f"/v1/xorbs/default/{xorb.name}", xorb.body)

    def shard(self, *files: FileOf, version: int = 2) -> Answer:
        return self.call("POST", f"/v{version}/shards", ShardOf(files, [ONE]).body)


def lines(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


@pytest.fixture
def name(hub: RunningHub, request: pytest.FixtureRequest) -> str:
    full = f"admin/{request.node.name.replace('[', '-').replace(']', '')}"[:90]
    hub.create(full)
    return full


def test_the_token_says_the_same_in_body_and_headers(hub: RunningHub, name: str) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    shown, headers = cas.answer.json(), cas.answer.headers
    assert headers["X-Xet-Cas-Url"] == shown["casUrl"] == f"{hub.url}{cas.url}"
    assert headers["X-Xet-Access-Token"] == shown["accessToken"]
    assert headers["X-Xet-Token-Expiration"] == str(shown["exp"])
    assert cas.url.startswith("/cas/e0/r")
    slashed = f"/api/models/{name}/xet-read-token/refs%2Fpr%2F1"
    assert hub.call("GET", slashed, token=hub.admin_token).status == 200
    unknown = f"/api/models/{name}/xet-read-token/{'0' * 40}"
    assert hub.call("GET", unknown, token=hub.admin_token).status == 404


def test_tokens_are_for_those_who_may(hub: RunningHub) -> None:
    ann, bob = hub.user("ann-t"), hub.user("bob-t")
    hub.create("ann-t/open", token=ann)
    hub.create("ann-t/secret", private=True, token=ann)
    expected = {
        ("open", "read", None): 200,
        ("open", "write", None): 401,
        ("open", "read", bob): 200,
        ("open", "write", bob): 403,
        ("open", "write", ann): 200,
        ("secret", "read", None): 404,
        ("secret", "read", bob): 404,
        ("secret", "write", bob): 404,
        ("secret", "write", ann): 200,
        ("secret", "execute", ann): 422,
    }
    found = {}
    for repository, access, token in expected:
        path = f"/api/models/ann-t/{repository}/xet-{access}-token/main"
        answer = hub.call("GET", path, token=token)
        found[repository, access, token] = answer.status
        if answer.status == 404:
            assert answer.headers["X-Error-Code"] == "RepoNotFound"
    assert found == expected


def test_what_need_not_be_sent_is_told_to_who_may_write_and_know_of_it(hub: RunningHub) -> None:
    ann, bob = hub.user("ann-k"), hub.user("bob-k")
    hub.create("ann-k/secret", private=True, token=ann)
    hub.create("bob-k/m", token=bob)
    cas = Cas(hub, "ann-k/secret", ann, "write")
    head = f"/v1/chunks/default/{to_text(chunk_hash(FILE.data[:60_000]))}"
    assert cas.call("GET", head).status == 404
    assert cas.send(ONE).status == 200
    assert cas.shard(FILE, version=1).status == 200
    operations = [{"op": "add", "path": "a.bin", "sha256": FILE.digest, "size": len(FILE.data)}]
    commits = "/v1/repositories/ann-k/secret/commits"
    assert hub.call("POST", commits, token=ann, body={"operations": operations}).status == 201
    known = cas.call("GET", head)
    assert (known.status, known.headers["content-type"]) == (200, "application/octet-stream")
    assert ONE.hash in known.body
    older = head.replace("default", "default-merkledb")
    assert cas.call("GET", older).body[:-200] == known.body[:-200]
    assert Cas(hub, "ann-k/secret", ann, "read").call("GET", head).status == 403
    # A chunk of another user's private file is answered like an unknown one.
    hidden = Cas(hub, "bob-k/m", bob, "write").call("GET", head)
    unknown = Cas(hub, "bob-k/m", bob, "write").call("GET", f"/v1/chunks/default/{'0' * 64}")
    assert (hidden.status, hidden.body) == (unknown.status, unknown.body)
    assert hidden.status == 404


def test_a_file_is_uploaded_and_committed(hub: RunningHub, name: str) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    assert cas.call("GET", f"/v1/chunks/default/{ONE.name}").status == 404
    assert cas.call("POST", f"/v1/xorb-grants/default/{ONE.name}", b'{"length": 9}').status == 404
    assert cas.send(ONE).json() == {"was_inserted": True}
    assert cas.send(ONE).json() == {"was_inserted": False}
    # A client that starts again learns before sending that the hub has the xorb.
    found = cas.call("POST", f"/v1/xorb-grants/default/{ONE.name}", b'{"length": 9}')
    assert (found.status, found.json()) == (200, {"was_inserted": False})
    shown = lines(cas.shard(FILE))
    assert shown[-1] == {"type": "result"}
    assert {line["type"] for line in shown} == {"validating", "committing", "result"}
    assert cas.shard(FILE, version=1).json() == {"result": 1}
    # The path of hf_xet 1.5.0.
    assert cas.call("POST", "/shards", ShardOf([FILE]).body).json() == {"result": 1}
    operations = [{"op": "add", "path": "a.bin", "sha256": FILE.digest, "size": len(FILE.data)}]
    body = {"operations": operations}
    path = f"/v1/repositories/{name}/commits"
    assert hub.call("POST", path, token=hub.admin_token, body=body).status == 201
    got = hub.call("GET", f"/{name}/resolve/main/a.bin")
    assert sha256(got.body).hexdigest() == FILE.digest
    assert cas.call("POST", "/v1/telemetry", b"{}").status == 200


def test_a_shard_with_unknown_chunks_is_refused_with_a_way_out(hub: RunningHub, name: str) -> None:
    # A xorb that nobody has sent before, not even to another repository.
    xorb = XorbOf(cut(Random(4).randbytes(9_000), 3_000))
    file = FileOf([TermOf(xorb)])
    cas = Cas(hub, name, hub.admin_token, "write")
    last = lines(cas.shard(file))[-1]
    assert (last["type"], last["retryable"]) == ("error", False)
    assert xorb.name in last["message"]
    assert "start the upload again" in last["message"]
    again = Cas(hub, name, hub.admin_token, "write")
    assert again.url == cas.url.replace("/e0/", "/e1/")
    refused = cas.shard(file, version=1)
    assert (refused.status, refused.headers["X-Error-Code"]) == (404, "upload_not_found")
    # The old URL still works for uploads that have begun.
    assert cas.send(xorb).status == 200
    assert lines(cas.shard(file))[-1] == {"type": "result"}


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_no_shard_is_refused(hub: RunningHub, name: str, version: int) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    for body, sentence in ((b"junk", "ends within"), (b"", "empty")):
        answer = cas.call("POST", f"/v{version}/shards", body)
        assert sentence in answer.body.decode()
        if version == 1:
            assert answer.status == 422
        else:
            assert lines(answer)[-1]["type"] == "error"


def test_what_is_no_xorb_is_refused(hub: RunningHub, name: str) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    other = XorbOf([b"other"])
    for path, body, status, sentence in (
        (f"default/{other.name}", ONE.body, 422, "not of"),
        (f"default/{ONE.name}", ONE.body[:-1], 422, "ends within"),
        ("default/xyz", ONE.body, 422, "is no Xet hash"),
        (f"elsewhere/{ONE.name}", ONE.body, 422, "prefix"),
    ):
        answer = cas.call("POST", f"/v1/xorbs/{path}", body)
        assert answer.status == status, answer.body
        assert sentence in answer.json()["error"]


def test_a_body_over_the_limit_is_not_read(hub: RunningHub, name: str) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    for path, limit in ((f"/v1/xorbs/default/{ONE.name}", 68_222_976), ("/v2/shards", 1 << 27)):
        connection = http.client.HTTPConnection(*hub.address, timeout=30)
        connection.putrequest("POST", cas.url + path)
        connection.putheader("Authorization", f"Bearer {cas.token}")
        connection.putheader("Content-Length", str(limit + 1))
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Connection"]) == (413, "close")
        assert str(limit) in answer.read().decode()
        connection.close()


def test_the_service_admits_only_its_own_tokens(hub: RunningHub, name: str) -> None:
    hub.create(f"{name}-2")
    cas = Cas(hub, name, hub.admin_token, "write")
    other = Cas(hub, f"{name}-2", hub.admin_token, "write")
    reading = Cas(hub, name, hub.admin_token, "read")
    path = f"{cas.url}/v1/xorbs/default/{ONE.name}"
    for token, status, sentence in (
        (None, 401, "needs a token"),
        (hub.admin_token, 401, "not made by this hub"),
        (cas.token[:-2], 401, "not made by this hub"),
        (other.token, 401, "for another repository"),
        (reading.token, 403, "only reads"),
    ):
        answer = hub.call("POST", path, token=token, body=ONE.body)
        assert answer.status == status, answer.body
        assert sentence in answer.json()["error"]
        assert hub.call("POST", f"{cas.url}/v2/shards", token=token, body=b"x").status == status


def test_a_token_that_is_over_is_refused(hub: RunningHub, name: str) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    signer = Signer.of_folder(hub.data_dir)
    claims = signer.verify("cas", cas.token)
    claims.pop("exp")
    cas.token = signer.sign("cas", claims, -1)
    answer = cas.send(ONE)
    assert answer.status == 401
    assert "expired; ask the hub for a new one" in answer.json()["error"]


def test_a_token_ends_with_the_right_to_write(hub: RunningHub) -> None:
    registry = hub.registry
    organizations.create_organization(registry, "org-x")
    cat = hub.user("cat-x")
    organizations.add_member(registry, "org-x", "cat-x", "write")
    hub.create("org-x/m", private=True, token=cat)
    cas = Cas(hub, "org-x/m", cat, "write")
    assert cas.send(ONE).status == 200
    organizations.add_member(registry, "org-x", "cat-x", "read")
    assert cas.send(ONE).status == 403
    organizations.remove_member(registry, "org-x", "cat-x")
    assert cas.send(ONE).status == 404
    assert cas.shard(FILE).status == 404


@pytest.mark.parametrize("ends", ["revoked", "expired"])
def test_a_token_ends_with_the_one_that_fetched_it(hub: RunningHub, ends: str) -> None:
    kim = f"kim-{ends}"
    old = hub.user(kim)
    hub.create(f"{kim}/m", private=True, token=old)
    hub.commit(f"{kim}/m", {"a.bin": ONE.body}, old)
    reading, writing = (Cas(hub, f"{kim}/m", old, access) for access in ("read", "write"))
    describe = f"/v2/reconstructions/{sha256(ONE.body).hexdigest()}"
    assert reading.call("GET", describe).status == writing.send(ONE).status == 200
    end_token(hub.registry, kim, ends)
    # The new token may have the database id of the old one: an id alone would name the new token.
    new = tokens.create_token(hub.registry, kim, "write")
    assert reading.call("GET", describe).status == 401
    assert writing.send(ONE).status == writing.shard(FILE).status == 401
    assert Cas(hub, f"{kim}/m", new, "write").send(ONE).status == 200


def test_a_token_of_an_earlier_hub_is_asked_for_anew(hub: RunningHub, name: str) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    signer = Signer.of_folder(hub.data_dir)
    claims = signer.verify("cas", cas.token)
    del claims["token"]
    cas.token = signer.sign("cas", {**claims, "user": 1, "name": "admin", "scope": "admin"}, 60)
    answer = cas.send(ONE)
    assert answer.status == 401
    assert "ask the hub for a new one" in answer.json()["error"]


def test_a_token_ends_with_its_repository(hub: RunningHub, name: str) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    admin = caller(hub.registry, "admin", is_admin=True)
    delete_repository(hub.registry, admin, name)
    hub.create(name)
    assert cas.send(ONE).status == 404
    fresh = Cas(hub, name, hub.admin_token, "write")
    assert fresh.url != cas.url


def test_a_file_that_comes_in_elsewhere_is_to_be_tried_again(hub: RunningHub, name: str) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    cas.send(ONE)
    file = FileOf([TermOf(ONE, 2)])
    admin = caller(hub.registry, "admin", is_admin=True)
    upload = landing.begin(hub.registry, admin, file.digest, len(file.data))
    with hub.registry.spool.open(upload.id, upload.size):
        last = lines(cas.shard(file))[-1]
        assert cas.shard(file, version=1).status == 409
    assert (last["type"], last["retryable"]) == ("error", True)
    assert "on another connection" in last["message"]
    assert lines(cas.shard(file))[-1] == {"type": "result"}


def test_nothing_stays_of_a_shard_whose_client_went_away(hub: RunningHub, name: str) -> None:
    cas = Cas(hub, name, hub.admin_token, "write")
    zeros = XorbOf([bytes(128 << 10)] * 100, scheme=1)
    cas.send(zeros)
    connection = http.client.HTTPConnection(*hub.address, timeout=30)
    body = ShardOf([FileOf([TermOf(zeros)] * 4)]).body
    headers = {"Authorization": f"Bearer {cas.token}"}
    connection.request("POST", f"{cas.url}/v2/shards", body, headers)
    with connection.getresponse() as answer:
        assert json.loads(answer.readline())["type"] == "validating"
    connection.close()
    deadline = time.monotonic() + 30
    while list(hub.registry.scratch.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert lines(cas.shard(FILE))[-1] is not None

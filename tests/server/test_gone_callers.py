"""The server stops the work of a request whose connection is gone, and frees its slot."""

import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from deltahub.codecs.ids import tensor_id
from deltahub.registry.db.models import Hold, Landing, Revision, Tensor
from deltahub.registry.db.tables.jobs import Job
from deltahub.server.settings import ServerSettings
from support.registry.client_packs import file_of, frames_of, pack_of, weights
from support.registry.collecting import count
from support.registry.ingested import push_ingested
from support.registry.opened import caller
from support.registry.xet import ShardOf
from support.registry.xet_uploads import FILE, ONE, TWO
from support.service.hf_door import lines, small
from support.service.hub import Answer, RunningHub, running_hub

PATIENCE_S = 30
DATA = weights(4_000)
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    # One slot each: a request that kept its slot would keep the next one waiting for ever.
    settings = ServerSettings(proof_threads=1, upload_threads=1, stop_grace_s=2)
    with running_hub(tmp_path / "data", server_settings=settings) as running:
        running.create("admin/m")
        yield running


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def nobody_writes(hub: RunningHub) -> Iterator[None]:
    """Within this context every request waits at its first write to the database."""
    with hub.registry.db.write():
        yield


def leave(hub: RunningHub, path: str, body: bytes, token: str, **headers: str) -> None:
    """Send a request, and close the connection while the request waits to write."""
    state = hub.server.server_state
    wait_until(lambda: not state.tasks)
    with nobody_writes(hub):
        connection = http.client.HTTPConnection(*hub.address, timeout=PATIENCE_S)
        headers |= {"Authorization": f"Bearer {token}"}
        connection.request("POST", path, body, headers)
        wait_until(lambda: len(state.tasks) == 1)
        time.sleep(0.3)  # so that it is likely to be at work, and not to be read yet
        connection.close()
        wait_until(lambda: not state.connections)
    wait_until(lambda: not state.tasks)


def cas_of(hub: RunningHub) -> Mapping[str, str]:
    path = "/api/models/admin/m/xet-write-token/main"
    found: Mapping[str, str] = hub.call("GET", path, token=hub.admin_token).json()
    return {"path": found["casUrl"].removeprefix(hub.url), "token": found["accessToken"]}


def send_xorbs(hub: RunningHub) -> None:
    cas = cas_of(hub)
    for xorb in (ONE, TWO):
        path = f"{cas['path']}/v1/xorbs/default/{xorb.name}"
        assert hub.call("POST", path, token=cas["token"], body=xorb.body).status == 200


@pytest.mark.parametrize("version", [1, 2])
def test_the_files_of_a_shard_are_not_built(hub: RunningHub, version: int) -> None:
    send_xorbs(hub)
    cas = cas_of(hub)
    path, body = f"{cas['path']}/v{version}/shards", ShardOf([FILE]).body
    leave(hub, path, body, cas["token"])
    assert count(hub.registry, Landing) == 0
    assert list(hub.registry.spool.list()) == list(hub.registry.scratch.iterdir()) == []
    assert hub.call("POST", path, token=cas["token"], body=body).status == 200
    assert count(hub.registry, Landing) == 1


def test_a_pack_is_not_verified(hub: RunningHub) -> None:
    pack = hub.upload(pack_of(frames_of(DATA)))
    path, body = "/v1/repositories/admin/m/packs", b'{"sha256": "%s"}' % pack.encode()
    leave(hub, path, body, hub.admin_token, **JSON)
    assert count(hub.registry, Tensor) == 0
    answer = hub.call("POST", path, token=hub.admin_token, body={"sha256": pack})
    assert (answer.status, count(hub.registry, Tensor)) == (200, 1)


def test_a_recipe_becomes_no_job(hub: RunningHub) -> None:
    pack = hub.upload(pack_of(frames_of(DATA)))
    body = {"sha256": pack}
    packs = "/v1/repositories/admin/m/packs"
    assert hub.call("POST", packs, token=hub.admin_token, body=body).status == 200
    _, recipe = file_of([DATA])
    path = "/v1/repositories/admin/m/recipes"
    leave(hub, path, recipe, hub.admin_token)
    assert count(hub.registry, Job) == 0
    assert hub.call("POST", path, token=hub.admin_token, body=recipe).status == 202


def test_a_query_holds_only_what_it_had_begun_with(hub: RunningHub) -> None:
    who = caller(hub.registry, "admin")
    push_ingested(hub.registry, who, "admin/m", {"a.bin": DATA})
    assert count(hub.registry, Hold) == 0
    # The tensor that is here comes in the second part of the query.
    absent = ",".join(f'["{sha256(b"%d" % i).hexdigest()}", 1]' for i in range(2000))
    here = f'["{tensor_id(DATA).hex()}", {len(DATA)}]'
    body = f'{{"tensors": [{absent}, {here}]}}'.encode()
    path = "/v1/repositories/admin/m/tensors/query"
    leave(hub, path, body, hub.admin_token, **JSON)
    assert count(hub.registry, Hold) == 0
    answer = hub.call("POST", path, token=hub.admin_token, body=body, headers=JSON)
    assert answer.json()["have"] == [tensor_id(DATA).hex()]


def test_a_commit_is_not_made(hub: RunningHub) -> None:
    sent = hub.upload(b"data")
    path = "/v1/repositories/admin/m/commits"
    body = b'{"operations": [{"op": "add", "path": "a", "sha256": "%s", "size": 4}]}'
    body %= sent.encode()
    leave(hub, path, body, hub.admin_token, **JSON)
    assert count(hub.registry, Revision) == 0
    assert hub.call("POST", path, token=hub.admin_token, body=body, headers=JSON).status == 201


def test_a_commit_with_small_files_is_not_made(hub: RunningHub) -> None:
    path = "/api/models/admin/m/commit/main"
    body = lines(*(small(f"{i}.txt", b"%d" % i) for i in range(300)))
    leave(hub, path, body, hub.admin_token)
    assert count(hub.registry, Revision) == 0
    # The first batch of files is whole; the second was not begun.
    assert count(hub.registry, Landing) == 256
    assert hub.call("POST", path, token=hub.admin_token, body=body).status == 200


def test_a_request_that_waited_for_its_turn_does_not_take_it(hub: RunningHub) -> None:
    pack = hub.upload(pack_of(frames_of(DATA)))
    path, state = "/v1/repositories/admin/m/packs", hub.server.server_state
    body = b'{"sha256": "%s"}' % pack.encode()
    connections = []
    with nobody_writes(hub):
        for _ in range(3):
            connection = http.client.HTTPConnection(*hub.address, timeout=PATIENCE_S)
            headers = JSON | {"Authorization": f"Bearer {hub.admin_token}"}
            connection.request("POST", path, body, headers)
            connections.append(connection)
        wait_until(lambda: len(state.tasks) == 3)
        for connection in connections:
            connection.close()
        wait_until(lambda: not state.connections)
    wait_until(lambda: not state.tasks)
    assert count(hub.registry, Tensor) == 0


def test_a_caller_who_stays_is_answered_after_one_who_left_on_another_connection(
    hub: RunningHub,
) -> None:
    sent = hub.upload(b"data")
    gone = http.client.HTTPConnection(*hub.address, timeout=PATIENCE_S)
    gone.request("GET", "/v1/whoami", headers={"Authorization": f"Bearer {hub.admin_token}"})
    gone.close()
    connection = http.client.HTTPConnection(*hub.address, timeout=PATIENCE_S)
    for _ in range(2):  # a connection that is kept alive
        head = {"Authorization": f"Bearer {hub.admin_token}"}
        connection.request("HEAD", f"/v1/uploads/{sent}", headers=head)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
    connection.close()


def dropped(hub: RunningHub, digest: str) -> Answer:
    return hub.call("DELETE", f"/v1/uploads/{digest}", token=hub.admin_token)


def test_an_upload_is_dropped_by_its_sender(hub: RunningHub) -> None:
    sent = hub.upload(b"data")
    assert hub.call("DELETE", f"/v1/uploads/{sent}").status == 401
    assert dropped(hub, sent).status == 204
    assert (dropped(hub, sent).status, dropped(hub, sent).code) == (404, "upload_not_found")
    hub.commit("admin/m", {"a": b"data"})
    assert dropped(hub, sent).status == 409

"""A hub without room, and a user at the limit, hear it from every door before the bytes go."""

import http.client
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from deltahub.registry.db.models import Landing
from support.registry.collecting import count
from support.registry.xet import ShardOf
from support.registry.xet_uploads import FILE, ONE, TWO
from support.service.hf_door import batch, send_commit, small
from support.service.hub import Answer, RunningHub, running_hub
from support.stores.small_disk import SmallDisk

TIB = 1 << 40


def name_of(number: int) -> str:
    return sha256(b"%d" % number).hexdigest()


@pytest.fixture
def disk() -> SmallDisk:
    return SmallDisk(room=20 * TIB)


@pytest.fixture
def hub(tmp_path: Path, disk: SmallDisk) -> Iterator[RunningHub]:
    limits = {"max_user_uploads": 4, "max_user_upload_bytes": 3 * TIB}
    with running_hub(tmp_path / "data", disk=disk, **limits) as running:
        running.create("admin/m")
        yield running


def announce(hub: RunningHub, number: int, size: int) -> Answer:
    """Announce an upload by its first byte."""
    headers = {"Content-Range": f"bytes 0-0/{size}"}
    path = f"/v1/uploads/{name_of(number)}"
    return hub.call("PUT", path, token=hub.admin_token, body=b"x", headers=headers)


def preupload(hub: RunningHub, *sizes: int) -> Answer:
    files = [{"path": f"{i}.bin", "size": size, "sample": ""} for i, size in enumerate(sizes)]
    path = "/api/models/admin/m/preupload/main"
    return hub.call("POST", path, token=hub.admin_token, body={"files": files})


def cas_call(hub: RunningHub, path: str, body: bytes) -> Answer:
    found = hub.call(
        "GET", "/api/models/admin/m/xet-write-token/main", token=hub.admin_token
    ).json()
    url = found["casUrl"].removeprefix(hub.url)
    return hub.call("POST", url + path, token=found["accessToken"], body=body)


def test_hundreds_of_huge_uploads_are_not_announced(hub: RunningHub) -> None:
    statuses = [announce(hub, number, TIB).status for number in range(6)]
    assert statuses == [202, 202, 202, 413, 413, 413]
    refused = announce(hub, 7, TIB)
    assert refused.code == "limit_exceeded"
    assert "commit them, or drop one with DELETE /v1/uploads/" in refused.message
    assert count(hub.registry, Landing) == 3
    # The way out that the sentence names.
    path = f"/v1/uploads/{name_of(0)}"
    assert hub.call("DELETE", path, token=hub.admin_token).status == 204
    assert announce(hub, 7, TIB).status == 202


def test_the_doors_of_hugging_face_clients_have_the_same_limit(hub: RunningHub) -> None:
    for number in range(3):
        assert announce(hub, number, TIB).status == 202
    for xorb in (ONE, TWO):
        assert cas_call(hub, f"/v1/xorbs/default/{xorb.name}", xorb.body).status == 200
    answers = [
        preupload(hub, 20 << 20),
        batch(hub, "admin/m", (name_of(8), 1000)),
        batch(hub, "admin/m", (name_of(8), 1000), transfers=("basic", "multipart")),
        send_commit(hub, "admin/m", small("a.txt", b"small")),
        cas_call(hub, "/v1/shards", ShardOf([FILE]).body),
    ]
    for answer in answers:
        assert answer.status == 413, answer.body
        assert "that no commit uses" in answer.json()["error"]
    # An upload that is announced already goes on.
    assert batch(hub, "admin/m", (name_of(0), TIB)).status == 200


def test_without_room_the_answer_is_507_before_the_body(hub: RunningHub, disk: SmallDisk) -> None:
    disk.free = 10_000_000
    for answer in (preupload(hub, 20 << 20), batch(hub, "admin/m", (name_of(8), 20 << 20))):
        assert answer.status == 507, answer.body
        assert "room for 10.0 MB, and this upload has 21.0 MB" in answer.json()["error"]
    connection = http.client.HTTPConnection(*hub.address, timeout=30)
    connection.putrequest("PUT", f"/v1/uploads/{name_of(8)}")
    connection.putheader("Authorization", f"Bearer {hub.admin_token}")
    connection.putheader("Content-Length", str(20 << 20))
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Connection"]) == (507, "close")
    assert b"room for 10.0 MB" in answer.read()
    connection.close()


def test_small_files_and_ignored_files_need_no_room(hub: RunningHub, disk: SmallDisk) -> None:
    disk.free = 10_000_000
    body = {
        "files": [
            {"path": "config.json", "size": 2000},
            {"path": "skipped.bin", "size": 20 << 20},
        ],
        "gitIgnore": "skipped.bin\n",
    }
    path = "/api/models/admin/m/preupload/main"
    assert hub.call("POST", path, token=hub.admin_token, body=body).status == 200


def test_a_client_of_xet_hears_of_a_full_disk_by_a_status_that_it_does_not_repeat(
    hub: RunningHub, disk: SmallDisk
) -> None:
    disk.room, disk.free = 1000, TIB
    for path, body in (
        (f"/v1/xorbs/default/{ONE.name}", ONE.body),
        ("/v1/shards", bytes(2000)),
    ):
        answer = cas_call(hub, path, body)
        assert (answer.status, answer.headers["X-Error-Code"]) == (413, "storage_full")

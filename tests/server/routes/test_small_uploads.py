"""Small files that come in one request."""

import os
from hashlib import sha256

from support.service.hub import Answer, RunningHub


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def status_of(hub: RunningHub, data: bytes) -> tuple[int, str | None]:
    answer = hub.call("HEAD", f"/v1/uploads/{digest_of(data)}", token=hub.admin_token)
    return answer.status, answer.headers.get("Upload-Complete")


def put_small(hub: RunningHub, *files: bytes, cut: int = 0, token: str | None = None) -> Answer:
    body = b"".join(len(file).to_bytes(4, "little") + file for file in files)
    return hub.call("POST", "/v1/uploads", token=token or hub.admin_token, body=body[cut:])


def test_small_files_come_together(hub: RunningHub) -> None:
    files = [os.urandom(n) for n in (0, 1, 70_000, 1, 3 << 20)]
    answer = put_small(hub, *files, files[2])
    assert (answer.status, answer.json()["sha256"]) == (
        201,
        [digest_of(file) for file in (*files, files[2])],
    )
    for file in files:
        assert status_of(hub, file) == (200, "1")
    assert put_small(hub).json() == {"sha256": []}


def test_of_small_files_that_come_wrong_nothing_is_mistaken(hub: RunningHub) -> None:
    first, second = os.urandom(100), os.urandom(100)
    cut = put_small(hub, first, second, cut=1)
    assert (cut.status, cut.code) in ((422, "invalid_request"), (413, "limit_exceeded"))
    body = (100).to_bytes(4, "little") + first + (100).to_bytes(4, "little") + second[:99]
    answer = hub.call("POST", "/v1/uploads", token=hub.admin_token, body=body)
    assert (answer.status, answer.code) == (422, "invalid_request")
    assert "ends within" in answer.message
    large = (1 << 30).to_bytes(4, "little")
    answer = hub.call("POST", "/v1/uploads", token=hub.admin_token, body=large)
    assert (answer.status, answer.code) == (413, "limit_exceeded")
    assert "PUT it by itself" in answer.message
    assert status_of(hub, second)[0] == 404
    assert put_small(hub, first, token="dh_wrong").status == 401

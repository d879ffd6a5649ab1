"""Uploads: whole, in parts, wrong, cut off. The hub reports exactly the bytes that it has."""

import contextlib
import errno
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from deltahub.client.api.endpoints import Api
from deltahub.client.api.transport import Transport
from deltahub.client.push.upload import Uploader
from deltahub.registry.access.tokens import authenticate
from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.disk import Disk
from deltahub.registry.uploads.landing import begin
from deltahub.server.settings import ServerSettings
from support.service.hub import Answer, RunningHub, running_hub


def put(hub: RunningHub, digest: str, body: bytes, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return hub.call("PUT", f"/v1/uploads/{digest}", token=hub.admin_token, body=body, headers=named)


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def offset_of(hub: RunningHub, digest: str) -> tuple[int, bool]:
    answer = hub.call("HEAD", f"/v1/uploads/{digest}", token=hub.admin_token)
    assert answer.status == 200
    headers = answer.headers
    return int(headers["Upload-Offset"]), headers["Upload-Complete"] == "1"


def begin_raw(
    hub: RunningHub, digest: str, *headers: str, token: str | None = None
) -> socket.socket:
    """A connection on which the head of a PUT has been sent."""
    connection = socket.create_connection(hub.address, timeout=20)
    head = [
        f"PUT /v1/uploads/{digest} HTTP/1.1",
        "Host: hub",
        f"Authorization: Bearer {token or hub.admin_token}",
        *headers,
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode())
    return connection


def status_of(connection: socket.socket) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, 3 * (1 << 20) + 17])
def test_a_whole_file_is_taken_and_known_afterwards(hub: RunningHub, size: int) -> None:
    data = os.urandom(size)
    answer = put(hub, digest_of(data), data)
    # Other tests on this hub may have sent no byte, or the same byte.
    assert answer.status == 201 or (size <= 1 and answer.status == 200)
    assert answer.json() == {
        "sha256": digest_of(data),
        "size": size,
        "received": size,
        "complete": True,
    }
    assert offset_of(hub, digest_of(data)) == (size, True)


def test_an_upload_sent_again_is_not_read_again(hub: RunningHub) -> None:
    data = os.urandom(5000)
    assert put(hub, digest_of(data), data).status == 201
    with begin_raw(
        hub, digest_of(data), "Content-Length: 5000", "Expect: 100-continue"
    ) as connection:
        status, body = status_of(connection)  # the final status, with no 100 before it
    assert status == 200
    assert b'"complete":true' in body


def test_parts_in_order_make_a_file(hub: RunningHub) -> None:
    data = os.urandom(2_500_000)
    digest = digest_of(data)
    first = put(hub, digest, data[:1_000_000], Content_Range="bytes 0-999999/2500000")
    assert (first.status, first.json()["complete"]) == (202, False)
    assert offset_of(hub, digest) == (1_000_000, False)
    second = put(hub, digest, data[1_000_000:], Content_Range="bytes 1000000-2499999/2500000")
    assert (second.status, second.json()["complete"]) == (201, True)
    assert offset_of(hub, digest) == (2_500_000, True)


def test_a_part_that_does_not_follow_is_told_where_to_continue(hub: RunningHub) -> None:
    data = os.urandom(3000)
    digest = digest_of(data)
    put(hub, digest, data[:1000], Content_Range="bytes 0-999/3000")
    answer = put(hub, digest, data[2000:], Content_Range="bytes 2000-2999/3000")
    assert (answer.status, answer.code) == (409, "upload_offset_mismatch")
    assert "1000" in answer.message
    assert put(hub, digest, data[1000:], Content_Range="bytes 1000-2999/3000").status == 201


def test_an_upload_whose_last_byte_was_written_before_a_kill_is_completed(
    hub: RunningHub, tmp_path: Path
) -> None:
    data = os.urandom(3000)
    digest = digest_of(data)
    put(hub, digest, data[:1000], Content_Range="bytes 0-999/3000")
    admin = authenticate(hub.registry, hub.admin_token)
    upload = begin(hub.registry, admin, digest, len(data))
    with hub.registry.spool.open(upload.id, len(data)) as file:  # as a killed hub leaves it
        file.append(data[1000:])
        file.sync()
    assert offset_of(hub, digest) == (3000, False)
    refused = put(hub, digest, b"more", Content_Range="bytes */3000")
    assert (refused.status, refused.code) == (422, "size_mismatch")
    (tmp_path / "m.bin").write_bytes(data)
    with contextlib.closing(Transport(hub.url, hub.admin_token)) as transport:
        Uploader(Api(transport)).upload(tmp_path / "m.bin", digest, len(data), lambda n: None)
    assert offset_of(hub, digest) == (3000, True)


def test_a_refusal_of_head_has_its_sentence_in_headers(hub: RunningHub) -> None:
    answer = hub.call("HEAD", "/v1/uploads/%C3%A5%0A", token=hub.admin_token)
    assert (answer.status, answer.body) == (422, b"")
    assert answer.headers["X-Error-Code"] == "invalid_request"
    assert "SHA-256" in answer.headers["X-Error-Message"]
    assert answer.headers["X-Error-Message"].isascii()


def test_bytes_with_another_hash_are_refused_and_forgotten(hub: RunningHub) -> None:
    digest = digest_of(os.urandom(32))
    answer = put(hub, digest, b"something else")
    assert (answer.status, answer.code) == (422, "hash_mismatch")
    assert hub.call("HEAD", f"/v1/uploads/{digest}", token=hub.admin_token).status == 404


@pytest.mark.parametrize(
    "content_range",
    [
        "bytes 0-9",
        "bytes 9-0/20",
        "bytes 0-20/20",
        "bytes -1-8/20",
        "items 0-9/20",
        "bytes 0-9/20, 10-19/20",
        "bytes \xd9\xa0-9/20",
        f"bytes 0-9/{'9' * 40}",
    ],
)
def test_a_content_range_that_makes_no_sense_is_refused(
    hub: RunningHub, content_range: str
) -> None:
    answer = put(hub, "ab" * 32, b"0123456789", Content_Range=content_range)
    assert (answer.status, answer.code) == (422, "invalid_request")


def test_a_range_and_a_length_that_disagree_are_refused(hub: RunningHub) -> None:
    answer = put(hub, "ab" * 32, b"0123456789", Content_Range="bytes 0-8/20")
    assert (answer.status, answer.code) == (422, "size_mismatch")


@pytest.mark.parametrize("name", ["xyz", "AB" * 32, "ab" * 31, "..%2f..%2fetc%2fpasswd"])
def test_what_is_no_sha256_is_refused(hub: RunningHub, name: str) -> None:
    assert put(hub, name, b"1").status in (404, 422)


def test_a_body_without_a_length_is_refused(hub: RunningHub) -> None:
    with begin_raw(hub, "ab" * 32, "Transfer-Encoding: chunked") as connection:
        status, body = status_of(connection)
    assert status == 411
    assert b"length_required" in body


def test_a_file_over_the_limit_is_refused_before_it_is_sent(hub: RunningHub) -> None:
    with begin_raw(
        hub, "ab" * 32, f"Content-Length: {1 << 40}", "Expect: 100-continue"
    ) as connection:
        status, body = status_of(connection)
    assert status == 413
    assert b"limit_exceeded" in body
    assert str(64 << 20).encode() in body


def test_a_token_that_may_not_write_is_refused_before_the_body(hub: RunningHub) -> None:
    token = hub.user("upload-reader", "read")
    with begin_raw(hub, "ab" * 32, f"Content-Length: {1 << 20}", token=token) as connection:
        status, body = status_of(connection)
        assert status == 403
        assert b"forbidden" in body
        # The connection is closed rather than read to the end.
        connection.settimeout(10)
        assert connection.recv(1) == b""


def test_what_came_before_a_client_died_is_kept_and_continued(hub: RunningHub) -> None:
    data = os.urandom(4 << 20)
    digest = digest_of(data)
    connection = begin_raw(hub, digest, f"Content-Length: {len(data)}")
    connection.sendall(data[: 3 << 20])
    time.sleep(0.2)
    connection.close()
    deadline = time.monotonic() + 10
    while True:  # until the server notices the closed connection
        answer = hub.call("HEAD", f"/v1/uploads/{digest}", token=hub.admin_token)
        came = int(answer.headers.get("Upload-Offset", 0))
        if came >= 2 << 20:
            break
        assert time.monotonic() < deadline, came
        time.sleep(0.05)
    assert came <= 3 << 20
    while True:  # until the dead connection's part is synced, the upload is busy
        place = f"bytes {came}-{len(data) - 1}/{len(data)}"
        answer = put(hub, digest, data[came:], Content_Range=place)
        if answer.status == 201:
            break
        assert answer.status == 409, answer.body
        came, _ = offset_of(hub, digest)
        assert time.monotonic() < deadline
    assert offset_of(hub, digest) == (len(data), True)


def test_bytes_behind_the_announced_end_are_never_part_of_the_file(hub: RunningHub) -> None:
    data = os.urandom(10)
    with begin_raw(hub, digest_of(data), "Content-Length: 10") as connection:
        connection.sendall(data + b"and more")
        status, body = status_of(connection)
    if status != 201:
        assert status == 400
        assert b"longer than announced" in body
    deadline = time.monotonic() + 10
    while put(hub, digest_of(data), data).status == 409:  # the first upload has not ended yet
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert offset_of(hub, digest_of(data)) == (10, True)


def test_one_user_does_not_see_the_uploads_of_another(hub: RunningHub) -> None:
    data = os.urandom(100)
    put(hub, digest_of(data), data)
    other = hub.user("upload-other")
    path = f"/v1/uploads/{digest_of(data)}"
    assert hub.call("HEAD", path, token=other).status == 404
    assert hub.call("HEAD", path).status == 404
    assert hub.call("PUT", path, token=other, body=data).status == 201


def test_an_upload_without_a_token_is_refused(hub: RunningHub) -> None:
    answer = hub.call("PUT", f"/v1/uploads/{'ab' * 32}", body=b"x")
    assert (answer.status, answer.code) == (401, "unauthorized")
    assert "Bearer" in answer.headers["WWW-Authenticate"]


class SmallDisk(Disk):
    """A disk with `room` bytes of free space."""

    room = 1 << 20

    def write(self, fd: int, data: Buffer) -> None:
        if self.room < memoryview(data).nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= memoryview(data).nbytes
        super().write(fd, data)


def test_a_full_disk_is_said_so_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    disk = SmallDisk()
    data = os.urandom(3 << 20)
    with running_hub(tmp_path / "data", disk=disk) as hub:
        answer = put(hub, digest_of(data), data)
        assert (answer.status, answer.code) == (507, "storage_full")
        assert offset_of(hub, digest_of(data)) == (0, False)
        disk.room = 1 << 40
        assert put(hub, digest_of(data), data).status == 201
        assert offset_of(hub, digest_of(data)) == (len(data), True)


def test_the_slow_uploads_of_one_user_leave_room_for_others(tmp_path: Path) -> None:
    slow = [os.urandom(1000), os.urandom(1000), os.urandom(1000)]
    settings = ServerSettings(upload_threads=2, uploads_per_user=1)
    with (
        running_hub(tmp_path / "data", server_settings=settings) as hub,
        contextlib.ExitStack() as stack,
    ):
        connections = []
        for data in slow:
            connection = begin_raw(hub, digest_of(data), "Content-Length: 1000")
            connections.append(stack.enter_context(connection))
            connection.sendall(data[:500])
        other = hub.user("quick")
        assert hub.call("HEAD", f"/v1/uploads/{'ab' * 32}", token=other).status == 404
        hub.upload(b"quick", other)
        for data, connection in zip(slow, connections, strict=True):
            connection.sendall(data[500:])
        assert [status_of(connection)[0] for connection in connections] == [201, 201, 201]


def test_a_client_that_sends_nothing_more_is_cut_off(tmp_path: Path) -> None:
    data = os.urandom(1000)
    with running_hub(tmp_path / "data", server_settings=ServerSettings(idle_s=0.3)) as hub:
        with begin_raw(hub, digest_of(data), "Content-Length: 1000") as connection:
            connection.sendall(data[:600])
            status, body = status_of(connection)
        assert status == 400
        assert b"body_cut" in body
        assert offset_of(hub, digest_of(data)) == (600, False)
        rest = put(hub, digest_of(data), data[600:], Content_Range="bytes 600-999/1000")
        assert rest.status == 201
        with socket.create_connection(hub.address, timeout=20) as connection:
            head = "POST /v1/repositories HTTP/1.1\r\nHost: hub\r\nContent-Length: 1000\r\n\r\n{"
            connection.sendall(head.encode())
            for _ in range(4):  # single bytes do not keep the connection open
                time.sleep(0.06)
                connection.sendall(b" ")
            status, body = status_of(connection)
            assert status == 400
            assert b"body_cut" in body
            assert connection.recv(1) == b""
        for silence in (b"", b"\r\n"):  # without a request there is no answer
            with socket.create_connection(hub.address, timeout=20) as connection:
                connection.sendall(silence)
                assert connection.recv(1) == b""
        for head in (b"GE", b"GET /v1/health HTTP/1.1\r\nHost: h"):
            with socket.create_connection(hub.address, timeout=20) as connection:
                connection.sendall(b"GET /v1/health/live HTTP/1.1\r\nHost: hub\r\n\r\n")
                assert status_of(connection)[0] == 200
                connection.sendall(head)
                status, body = status_of(connection)
                assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
                assert connection.recv(1) == b""


class SlowUpload(threading.Thread):
    """An upload of a block every 0.1 s, within idle_s; after is_enough at full speed."""

    def __init__(self, hub: RunningHub) -> None:
        super().__init__()
        self.data = bytes(40 << 20)
        self.is_enough = threading.Event()
        self.status: int | None = None
        self._connection = begin_raw(hub, digest_of(self.data), f"Content-Length: {40 << 20}")

    def run(self) -> None:
        with self._connection as connection:
            for start in range(0, len(self.data), 1 << 20):
                connection.sendall(self.data[start : start + (1 << 20)])
                self.is_enough.wait(0.1)
            self.status, _ = status_of(connection)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_upload_that_has_no_turn_in_time_is_told_to_come_again_and_our_client_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = os.urandom(3 << 20)
    path = tmp_path / "file"
    path.write_bytes(data)
    settings = ServerSettings(uploads_per_user=1, idle_s=0.7)
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        slow = SlowUpload(hub)
        slow.start()
        head = f"/v1/uploads/{digest_of(slow.data)}"
        wait_until(lambda: hub.call("HEAD", head, token=hub.admin_token).status == 200)
        with begin_raw(hub, "ab" * 32, f"Content-Length: {len(data)}") as connection:
            response = http.client.HTTPResponse(connection)
            response.begin()
            refusal = json.loads(response.read())["error"]
            assert (response.status, refusal["code"]) == (503, "busy")
            assert int(response.headers["Retry-After"]) > 0
            assert "receives 1 uploads of one user at once" in refusal["message"]
            assert connection.recv(1) == b"", "its body is not waited for"
        transport = Transport(hub.url, hub.admin_token, patience_s=0)
        with contextlib.closing(transport), ThreadPoolExecutor(1) as pool:
            uploader = Uploader(Api(transport))
            sent = pool.submit(uploader.upload, path, digest_of(data), len(data), lambda n: None)
            wait_until(lambda: f"{digest_of(data)} code=busy" in caplog.text)
            slow.is_enough.set()
            sent.result()
        slow.join()
        assert slow.status == 201
        assert offset_of(hub, digest_of(data)) == (len(data), True)

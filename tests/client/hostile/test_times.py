"""A hub that trickles, falls silent or never ends: every call ends in a bounded time."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deltahub.client import Hub, HubUnreachable
from deltahub.client.api import jobs, pace, transport
from support.service.hostile_hub import Handler, HostileHub, Reply, reply

NAME = "evil/m"
ROOT = f"/v1/repositories/{NAME}"
MIB = 1 << 20


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of seconds instead of minutes."""
    monkeypatch.setattr(pace, "WINDOW_S", 1.0)
    monkeypatch.setattr(transport, "LONG_TIMEOUT_S", 1.0)
    call, opened = transport.Transport.call, transport.Transport.open
    for function in (call, opened):
        unwrapped = getattr(function, "__wrapped__", function)
        defaults = {**(unwrapped.__kwdefaults__ or {}), "timeout_s": 1.0}
        monkeypatch.setattr(unwrapped, "__kwdefaults__", defaults)


def trickled_body(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 20))
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def trickled_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"X")
        time.sleep(0.05)


def endless_continues(handler: Handler) -> None:
    while True:
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.05)


def endless_trailers(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"0\r\n")
    while True:
        handler.wfile.write(b"X: y\r\n")
        time.sleep(0.05)


def silence(handler: Handler) -> None:
    time.sleep(30)


@pytest.mark.parametrize(
    "answer",
    [trickled_body, trickled_headers, endless_continues, endless_trailers, silence],
)
@pytest.mark.usefixtures("short")
def test_a_hub_that_trickles_a_small_answer_does_not_hold_the_client(
    evil: HostileHub, client: Hub, answer: Callable[[Handler], None]
) -> None:
    evil.answers["GET /v1/whoami"] = answer
    start = time.monotonic()
    with pytest.raises(HubUnreachable, match="too slow"):
        client.whoami()
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("answer", [trickled_body, trickled_headers, silence])
@pytest.mark.usefixtures("short")
def test_a_hub_that_trickles_a_file_does_not_hold_the_client(
    evil: HostileHub, client: Hub, tmp_path: Path, answer: Callable[[Handler], None]
) -> None:
    evil.serve_revision(NAME, {"a.bin": bytes(MIB)})
    evil.answers[f"GET {ROOT}/files/a.bin"] = answer
    start = time.monotonic()
    with pytest.raises(HubUnreachable, match="too slow"):
        client.pull(NAME, to=tmp_path / "m")
    assert time.monotonic() - start < 15


@pytest.mark.usefixtures("short")
def test_a_file_that_comes_slowly_but_steadily_is_not_given_up(
    evil: HostileHub, client: Hub, tmp_path: Path
) -> None:
    data = os.urandom(3 * MIB)

    def steady(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        for start in range(0, len(data), MIB // 2):
            handler.wfile.write(data[start : start + MIB // 2])
            time.sleep(0.3)

    evil.serve_revision(NAME, {"a.bin": data})
    evil.answers[f"GET {ROOT}/files/a.bin"] = steady
    client.pull(NAME, to=tmp_path / "m")
    assert (tmp_path / "m" / "a.bin").read_bytes() == data


def test_a_hub_that_sends_a_byte_for_each_connection_does_not_hold_the_client(
    evil: HostileHub, tmp_path: Path
) -> None:
    data = os.urandom(MIB)

    def a_byte(handler: Handler) -> None:
        start = int(handler.headers.get("Range", "bytes=0-").split("=")[1].split("-")[0])
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        handler.wfile.write(data[start : start + 1])
        handler.connection.shutdown(socket.SHUT_RDWR)

    evil.serve_revision(NAME, {"a.bin": data})
    evil.answers[f"GET {ROOT}/files/a.bin"] = a_byte
    start = time.monotonic()
    with Hub(evil.url, patience_s=1) as client, pytest.raises(HubUnreachable):
        client.pull(NAME, to=tmp_path / "m")
    assert time.monotonic() - start < 15


@pytest.mark.usefixtures("short")
def test_a_hub_that_takes_no_upload_does_not_hold_the_client(tmp_path: Path) -> None:
    """It answers the question for the upload, and then reads nothing of the body."""
    path = tmp_path / "f"
    path.write_bytes(bytes(32 * MIB))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        sender = transport.Transport(url, None, patience_s=0)
        start = time.monotonic()
        with path.open("rb") as file, pytest.raises(HubUnreachable, match="too slow"):
            sender.with_retries(lambda: sender.send_file("/v1/uploads/x", file, 0, 32 * MIB))
        assert time.monotonic() - start < 15
        sender.close()


@pytest.mark.parametrize("is_moving", [True, False])
def test_a_job_that_never_ends_is_not_waited_for_for_ever(
    evil: HostileHub, client: Hub, monkeypatch: pytest.MonkeyPatch, is_moving: bool
) -> None:
    monkeypatch.setattr(jobs, "UNCHANGED_S", 30.0 if is_moving else 0.5)
    monkeypatch.setattr(jobs, "LONGEST_JOB_S", 1.0 if is_moving else 30.0)
    done = iter(range(10**9))

    def running(_: Handler) -> Reply:
        progress = {"stage": "store", "done_bytes": next(done) * is_moving, "total_bytes": 1 << 40}
        return reply({"id": "abc", "kind": "ingest", "state": "running", "progress": progress})

    evil.answers["GET /v1/jobs/abc"] = running
    start = time.monotonic()
    with pytest.raises(HubUnreachable, match="has not ended the ingest job abc"):
        client.wait_for_job("abc")
    assert time.monotonic() - start < 15

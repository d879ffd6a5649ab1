"""HTTP: kept connections, retries, early refusals, and malformed answers."""

import http.server
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltahub.client.api.transport import Transport
from deltahub.client.errors import (
    BadResponse,
    Busy,
    Forbidden,
    HubError,
    HubUnreachable,
    InvalidArgument,
    LocalFileChanged,
    NotFound,
    RefMoved,
)
from support.needed import lacking


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each request with the next entry of the server's script; repeats the last."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def _answer(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        script = self.server.script
        status, body, headers = script.pop(0) if len(script) > 1 else script[0]
        if status == 0:  # break the wire instead
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if "Connection" not in headers and self.command in ("PUT", "POST"):
            left = int(self.headers.get("Content-Length", 0))
            while left:
                left -= len(self.rfile.read(min(left, 1 << 20)))
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

    def log_message(self, *args: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    script: list[tuple[int, bytes, dict[str, str]]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = [(200, b"{}", {})]
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.n_connections = 0

    def get_request(self) -> tuple[socket.socket, Any]:
        self.n_connections += 1
        return super().get_request()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def transport(server: Server) -> Iterator[Transport]:
    transport = Transport(server.url, "dh_secret", patience_s=2.0)
    yield transport
    transport.close()


def error_body(code: str, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def test_one_connection_carries_many_requests_and_the_token(
    server: Server, transport: Transport
) -> None:
    for _ in range(5):
        assert transport.call("GET", "/v1/a b/ü", query={"q": "x/y", "none": None}).json() == {}
    assert server.n_connections == 1
    method, path, headers = server.seen[0]
    assert (method, path) == ("GET", "/v1/a%20b/%C3%BC?q=x%2Fy")
    assert headers["Authorization"] == "Bearer dh_secret"


def test_an_error_of_the_hub_is_its_class_and_keeps_the_connection(
    server: Server, transport: Transport
) -> None:
    server.script = [
        (412, error_body("ref_moved", "main has moved"), {}),
        (404, b"", {}),
        (403, b"<html>no</html>", {}),
        (418, error_body("teapot", "from the future"), {}),
    ]
    with pytest.raises(RefMoved, match="main has moved") as moved:
        transport.call("POST", "/v1/x", json_body={})
    assert (moved.value.code, moved.value.status) == ("ref_moved", 412)
    with pytest.raises(NotFound):
        transport.call("HEAD", "/v1/x")
    with pytest.raises(Forbidden, match="403"):
        transport.call("GET", "/v1/x")
    with pytest.raises(HubError, match="future") as unknown:
        transport.call("GET", "/v1/x")
    assert unknown.value.code == "teapot"
    assert server.n_connections == 1


def test_the_sentence_of_an_answer_to_head_is_in_its_headers(
    server: Server, transport: Transport
) -> None:
    sentence = {"X-Error-Code": "unavailable", "X-Error-Message": "the bucket does not answer"}
    server.script = [(503, b"{}", sentence)]
    with pytest.raises(HubError, match="the bucket does not answer") as away:
        transport.call("HEAD", "/v1/x")
    assert (away.value.code, away.value.status) == ("unavailable", 503)


def test_a_wire_that_breaks_is_tried_again(server: Server, transport: Transport) -> None:
    server.script = [(200, b"1", {}), (0, b"", {}), (0, b"", {}), (200, b"2", {})]
    assert transport.call("GET", "/v1/x").json() == 1
    assert transport.call("GET", "/v1/x").json() == 2


def test_a_busy_hub_is_tried_again_and_its_error_shown_in_the_end(
    server: Server, transport: Transport
) -> None:
    server.script = [(503, error_body("unavailable", "busy"), {}), (200, b"2", {})]
    assert transport.call("GET", "/v1/x").json() == 2
    server.script = [(503, error_body("unavailable", "still busy"), {})]
    with pytest.raises(HubError, match="still busy"):
        transport.call("GET", "/v1/x")


def test_a_hub_that_is_merely_busy_costs_no_patience_but_not_for_ever(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = Transport(server.url, None, patience_s=0)
    busy = (503, error_body("busy", "16 uploads of yours are under way"), {"Retry-After": "0"})
    server.script = [busy] * 5 + [(200, b"2", {})]
    heard: list[str] = []
    with transport.reporting_waits(heard.append):
        assert transport.call("PUT", "/v1/x", body=b"data").json() == 2
    assert heard == ["waiting: the hub is busy (16 uploads of yours are under way)"]
    monkeypatch.setattr("deltahub.client.api.transport._REPORT_EVERY_S", 0)
    monkeypatch.setattr("deltahub.client.api.transport.BUSY_PATIENCE_S", 0.5)
    server.script = [busy]
    with pytest.raises(Busy, match="16 uploads"):
        transport.call("PUT", "/v1/x", body=b"data")
    assert len(server.seen) < 20
    assert len(heard) == 1  # a removed listener is not called
    transport.close()


def test_the_pause_that_a_hub_asks_for_is_kept(server: Server, transport: Transport) -> None:
    server.script = [(503, error_body("busy", "wait"), {"Retry-After": "1"}), (200, b"2", {})]
    start = time.monotonic()
    assert transport.call("GET", "/v1/x").json() == 2
    assert time.monotonic() - start >= 1


def test_a_kept_connection_that_the_hub_closed_is_replaced_unnoticed(
    server: Server, transport: Transport
) -> None:
    server.script = [(200, b"1", {"Connection": "close"}), (200, b"2", {})]
    assert transport.call("GET", "/v1/x").json() == 1
    time.sleep(0.05)
    start = time.monotonic()
    assert transport.call("GET", "/v1/x").json() == 2
    assert time.monotonic() - start < 0.1


def test_nobody_listening_is_said_at_once_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(HubUnreachable, match="is `deltahub serve` running"):
        Transport(f"http://127.0.0.1:{port}", None).call("GET", "/v1/health")
    assert time.monotonic() - start < 3


def test_an_unknown_host_is_said_at_once() -> None:
    with pytest.raises(HubUnreachable, match="not known"):
        Transport("http://no-such-host.invalid", None).call("GET", "/v1/health")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://",
        "http://host:port",
        "http://h:99999",
        "http://[::1",
        "http://a..b",
        "http://a b",
        "http://a\0b",
        "http://host/a é",
    ],
)
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="not the address of a hub"):
        Transport(url, None)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@hub.example",
        "user:s3cret@hub.example:80",
        "http://user:s3cret@hub.example:port",
        "ftp://user:s3cret@hub.example?token=s3cret",
        "https://hub.example/?sig=s3cret",
        "http://u:s3cret@a b",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Transport(url, None)
    assert "hub.example" in str(refused.value) or "a b" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_link_to_another_place_is_shown_without_its_signature(
    server: Server, transport: Transport
) -> None:
    location = "https://u:s3cret@store.example/model?X-Amz-Signature=s3cret"
    server.script = [(307, b"", {"Location": location})]
    with pytest.raises(BadResponse, match=r"https://store\.example/model: ") as refused:
        transport.call("GET", "/v1/health")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("token", ["a b\nc", "dh_é€", "dh_\udce9", "a b"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Transport("http://127.0.0.1:1", token)
    assert token not in str(refused.value)
    assert ascii(token)[1:-1] not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_server_that_speaks_no_tls_is_reported(server: Server) -> None:
    with pytest.raises(HubUnreachable, match="no trusted connection"):
        Transport(server.url.replace("http:", "https:"), None).call("GET", "/")


def self_signed(folder: Path) -> Path:
    """A certificate of localhost and its key in one file."""
    if shutil.which("openssl") is None:
        lacking("openssl is not installed: no certificate to test TLS with")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


def test_a_certificate_that_nobody_signed_is_refused(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Server() as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = server.url.replace("http:", "https:").replace("127.0.0.1", "localhost")
        try:
            with pytest.raises(HubUnreachable, match="certificate"):
                Transport(url, None).call("GET", "/")
            trusting = Transport(url, None)
            assert trusting._tls is not None
            trusting._tls.load_verify_locations(certificate)
            assert trusting.call("GET", "/").json() == {}
            trusting.close()
        finally:
            server.shutdown()
            thread.join()


def test_a_redirect_is_reported_with_its_target(server: Server, transport: Transport) -> None:
    server.script = [(307, b"", {"Location": "https://hub.example/v1/x"})]
    with pytest.raises(BadResponse, match=r"https://hub\.example/v1/x"):
        transport.call("GET", "/v1/x")


def test_an_answer_that_is_no_json_is_reported(server: Server, transport: Transport) -> None:
    server.script = [(200, b"<html>", {})]
    with pytest.raises(BadResponse, match="not JSON"):
        transport.call("GET", "/v1/x").json()


def test_a_file_is_sent_from_where_the_hub_stands(
    server: Server, transport: Transport, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(20 << 20))
    server.script = [(201, b"{}", {})]
    sent: list[int] = []
    with path.open("rb") as file:
        transport.send_file("/v1/uploads/x", file, 1 << 20, 20 << 20, on_sent=sent.append)
    _, _, headers = server.seen[0]
    assert headers["Content-Range"] == f"bytes {1 << 20}-{(20 << 20) - 1}/{20 << 20}"
    assert headers["Content-Length"] == str(19 << 20)
    assert sum(sent) == 19 << 20


def test_a_refusal_before_the_end_of_the_body_is_understood(
    server: Server, transport: Transport, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(64 << 20))
    refusal = error_body("forbidden", "a read token does not write")
    server.script = [(403, refusal, {"Connection": "close"})]
    with path.open("rb") as file, pytest.raises(HubError) as refused:
        transport.with_retries(lambda: transport.send_file("/v1/uploads/x", file, 0, 64 << 20))
    assert isinstance(refused.value, Forbidden | HubUnreachable)


def test_a_file_that_shrinks_while_it_is_sent_is_reported(
    server: Server, transport: Transport, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    with path.open("rb") as file, pytest.raises(LocalFileChanged, match="became shorter"):
        transport.send_file("/v1/uploads/x", file, 0, 200)

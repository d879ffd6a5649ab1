"""Silent connections keep nobody out: they are counted by address and end for new ones."""

import logging
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from deltahub.server.connections import limits
from deltahub.server.connections.addresses import Proxies, counted_address
from deltahub.server.connections.limits import ConnectionLimits
from deltahub.server.settings import ServerSettings
from support.service.hub import Hub, running_hub

HEALTH = b"GET /v1/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SLOW_POST = b"POST /v1/repositories HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"


def connect(hub: Hub, address: str) -> socket.socket:
    """A connection from this address of loopback."""
    return socket.create_connection(hub.address, timeout=20, source_address=(address, 0))


def connect_many(
    hub: Hub, stack: ExitStack, address: str, n: int, send: bytes = b""
) -> list[socket.socket]:
    found = []
    for _ in range(n):
        found.append(stack.enter_context(connect(hub, address)))
        found[-1].sendall(send)
    return found


def is_served(hub: Hub, address: str) -> bool:
    with connect(hub, address) as connection:
        connection.sendall(HEALTH)
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    return True


def n_ended(connections: list[socket.socket]) -> int:
    return len(select.select(connections, [], [], 0)[0])


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_silent_connections_of_one_address_end_for_new_ones(tmp_path: Path) -> None:
    settings = ServerSettings(stop_grace_s=2, connections_per_address=8)
    with running_hub(tmp_path / "data", server_settings=settings) as hub, ExitStack() as stack:
        silent = connect_many(hub, stack, "127.0.0.2", 20)
        in_head = connect_many(hub, stack, "127.0.0.2", 2, b"GET / HTTP/1.1\r\n")
        wait_until(lambda: n_ended(silent) == 14)
        assert is_served(hub, "127.0.0.2")
        assert is_served(hub, "127.0.0.3")
        # The longest silent ones ended first.
        assert n_ended(silent[:14]) == 14
        assert n_ended(in_head) == 0


def test_where_every_connection_of_an_address_has_a_request_a_new_one_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(stop_grace_s=2, connections_per_address=8)
    with running_hub(tmp_path / "data", server_settings=settings) as hub, ExitStack() as stack:
        busy = connect_many(hub, stack, "127.0.0.2", 8, SLOW_POST)
        wait_until(lambda: hub.server.traffic.requests == 8)
        for _ in range(3):
            with connect(hub, "127.0.0.2") as connection:
                answer = connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"busy"' in answer
            assert b"DELTAHUB_SERVER_CONNECTIONS_PER_ADDRESS is 8" in answer
            assert b"retry-after: 1" in answer.lower()
        assert is_served(hub, "127.0.0.3")
        assert n_ended(busy) == 0
    lines = [record for record in caplog.records if "connections are short" in record.message]
    assert len(lines) == 1, "one line in 10 s"
    assert "127.0.0.2" in lines[0].message


def test_connections_of_many_addresses_leave_room_and_silent_ones_lose_patience(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHORT_PATIENCE_S", 1.0)
    settings = ServerSettings(stop_grace_s=2, max_connections=40, connections_per_address=16)
    with running_hub(tmp_path / "data", server_settings=settings) as hub, ExitStack() as stack:
        silent: list[socket.socket] = []
        for n in range(20):
            silent += connect_many(hub, stack, f"127.0.1.{n + 1}", 5)
        for n in range(5):
            assert is_served(hub, f"127.0.2.{n + 1}")
        assert n_ended(silent) >= 60
        # idle_s is 120, but connections are short.
        wait_until(lambda: n_ended(silent) >= 70)
    assert "connections are short: open=" in caplog.text


def test_a_hub_with_few_open_files_serves_beside_400_silent_connections(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300));"
        "sys.argv[1:] = ['--data-dir', sys.argv[1], '--port', '0', '--no-worker'];"
        "import runpy; runpy.run_module('deltahub.server', run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    with log.open("wb") as sink, ExitStack() as stack:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True)
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        assert process.stdout is not None
        line = next(line for line in process.stdout if "listening" in line)
        hub = Hub(line.split()[-1], "", tmp_path / "data")
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (300, 300)
        connect_many(hub, stack, "127.0.0.2", 400)
        assert is_served(hub, "127.0.0.2")
        assert is_served(hub, "127.0.0.3")
        process.stdout.close()
    text = log.read_text()
    assert "at most 150 connections, not 2048" in text
    assert "connections are short: open=" in text
    assert "Traceback" not in text


class Connected:
    """A connection that notes whether it was ended."""

    def __init__(self) -> None:
        self.is_ended = False

    def end_idle(self) -> None:
        self.is_ended = True


def test_a_named_proxy_has_no_limit_of_its_own_and_is_ended_last() -> None:
    counted = ConnectionLimits(10, 2, Proxies("10.0.0.1, fd00::/8"))
    carried = [Connected() for _ in range(8)]
    assert [counted.open(one, "::ffff:10.0.0.1") for one in carried] == [None] * 8
    direct = [Connected() for _ in range(2)]
    assert [counted.open(one, "10.0.0.2") for one in direct[:1]] == [None]
    assert [counted.open(one, "10.0.0.3") for one in direct[1:]] == [None]
    # All 10 are open and idle: the one of another address ends.
    assert counted.open(Connected(), "10.0.0.4") is None
    assert not any(one.is_ended for one in carried)
    assert [one.is_ended for one in direct] == [True, False]


def test_nothing_is_kept_of_connections_that_have_ended() -> None:
    counted = ConnectionLimits(4, 2, Proxies())
    for n in range(100):
        connections = [Connected() for _ in range(3)]
        for connection in connections:
            if counted.open(connection, f"10.0.0.{n}") is None:
                counted.set_busy(connection)
        counted.set_idle(connections[0])
        for connection in connections:
            counted.close(connection)
    assert (counted._address_of, counted._n_open) == ({}, {})
    assert (counted._idle, counted._idle_of) == ({}, {})


def test_the_lines_of_a_shortage_are_one_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    counted = ConnectionLimits(4, 4, Proxies())
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            counted.open(Connected(), "10.0.0.1")
    assert caplog.text.count("connections are short") == 1


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("2001:db8:1:3::9", "2001:db8:1:3::"),
    ],
)
def test_ipv6_is_counted_by_its_network(host: str, counted: str) -> None:
    assert counted_address(host) == counted

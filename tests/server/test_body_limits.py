"""Every route reads bodies in bounded memory, and large bodies only from users with a token."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.types import Message

from deltahub.registry.access.caller import Caller
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.server.app import _ROUTERS, create_app
from deltahub.server.body_limits import SMALL_BYTES, BoundedRoute
from deltahub.server.hf.app import create_hugging_face_app
from deltahub.server.hub import Hub
from support.service.hub import RunningHub

PIECE = bytes(64 << 10)
ENDLESS = 64 << 20
# Each of these handlers authenticates the caller and checks the limit before it reads the body.
STREAMING = {
    "accept_recipe", "complete_parts", "create_commit", "grant_xorb", "post_shard",
    "post_telemetry", "post_xorb", "put_adapter_kit", "put_object", "put_part",
    "put_small_uploads", "put_upload", "stream_shard",
}  # fmt: skip


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    with Registry.open(Settings(data_dir=tmp_path_factory.mktemp("limits") / "data")) as registry:
        yield create_app(registry)


def routes_of(hub: Hub) -> list[tuple[str, BoundedRoute]]:
    """(path, route) of all routes of both applications."""
    found = [(f"/v1{route.path}", route) for one in _ROUTERS for route in one.router.routes]
    found += [(route.path, route) for route in create_hugging_face_app(hub).state.routes]
    assert all(isinstance(route, BoundedRoute) for _, route in found)
    return found


async def flood(app: FastAPI, method: str, path: str) -> tuple[int, int]:
    """(status, bytes that were read) of an endless body without a token."""
    taken, status = 0, 0

    async def receive() -> Message:
        nonlocal taken
        taken += len(PIECE)
        return {"type": "http.request", "body": PIECE, "more_body": taken < ENDLESS}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)

    headers = [(b"transfer-encoding", b"chunked"), (b"content-type", b"application/json")]
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": headers, "client": ("10.0.0.1", 1), "server": ("hub", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    return status, taken


def test_every_route_bounds_its_body_or_says_that_its_handler_does(app: FastAPI) -> None:
    routes = routes_of(app.state.hub)
    assert {route.name for _, route in routes if route.is_streaming} == STREAMING
    # FastAPI reads a body parameter whole before it calls the handler.
    assert not [path for path, route in routes if route.is_streaming and route.body_field]
    others = [route for route in app.routes if getattr(route, "endpoint", None) is not None]
    assert not [route for route in others if getattr(route, "body_field", None) is not None]


def test_no_route_reads_much_from_who_sends_no_token(app: FastAPI) -> None:
    async def flood_all() -> dict[str, tuple[int, int]]:
        answers = {}
        for path, route in routes_of(app.state.hub):
            for method in route.methods:
                filled = re.sub(r"{[^}]*}", "x", path)
                answers[f"{method} {filled}"] = await flood(app, method, filled)
        return answers

    answers = anyio.run(flood_all)
    assert len(answers) > 90
    most = SMALL_BYTES + len(PIECE)
    assert not {path: answer for path, answer in answers.items() if answer[1] > most}
    assert not {path: answer for path, answer in answers.items() if not 400 <= answer[0] < 600}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/lfs/objects/x/complete"),
        ("PATCH", "/v1/repositories/a/recipes"),
        ("POST", "/v1/repositories/commit/recipes/commits"),
        ("POST", "/api/models/commit/x/preupload/main"),
        ("POST", "/api/models/x/commit/paths-info/main"),
        ("POST", "/api/models/commit/commit/commit/main"),
        ("POST", "/nothing/is/here"),
    ],
)
def test_what_a_path_looks_like_lifts_no_limit(app: FastAPI, method: str, path: str) -> None:
    status, taken = anyio.run(flood, app, method, path)
    assert 400 <= status < 500
    assert taken <= SMALL_BYTES + len(PIECE)


def answer_to(hub: RunningHub, *headers: str) -> bytes:
    """The answer to a request of which only the head was sent."""
    head = ["POST /v1/repositories HTTP/1.1", "Host: hub", *headers, "", ""]
    with socket.create_connection(hub.address, timeout=20) as connection:
        connection.sendall("\r\n".join(head).encode())
        text = b""
        while piece := connection.recv(10_000):
            text += piece
    return text


def test_a_token_is_looked_at_before_the_body(hub: RunningHub) -> None:
    bad = answer_to(hub, "Authorization: Bearer dh_no", "Content-Length: 1000")
    assert bad.startswith(b"HTTP/1.1 401 ")
    assert b"this token is not known" in bad
    large = answer_to(hub, "Content-Length: 16777215")
    assert large.startswith(b"HTTP/1.1 413 ")


def test_without_a_token_requests_are_small(app: FastAPI) -> None:
    hub: Hub = app.state.hub
    assert hub.registry.settings.max_request_json_bytes > SMALL_BYTES
    answer: list[bytes] = []

    async def ask() -> None:
        async def receive() -> Message:
            raise AssertionError("nothing is read")

        async def send(message: Message) -> None:
            answer.append(message.get("body", b""))

        headers = [(b"content-length", str(SMALL_BYTES + 1).encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/repositories", "query_string": b"",
                 "headers": headers, "client": ("10.0.0.1", 1), "root_path": ""}  # fmt: skip
        await app(scope, receive, send)

    anyio.run(ask)
    text = b"".join(answer).decode()
    assert f"larger than the limit of {SMALL_BYTES} bytes for a request without a token" in text


def test_one_users_proofs_leave_a_place_for_others(tmp_path: Path) -> None:
    async def scenario(hub: Hub) -> None:
        one, other = (Caller(n, f"user{n}", is_admin=False, scope="write") for n in (1, 2))
        n_begun, may_end = 0, anyio.Event()

        def heavy() -> None:
            nonlocal n_begun
            n_begun += 1
            anyio.from_thread.run(may_end.wait)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(hub.verify, one, heavy)
            with anyio.fail_after(20):
                assert await hub.verify(other, lambda: "proved") == "proved"
                while n_begun == 0:
                    await anyio.sleep(0.01)
            assert n_begun == 1
            may_end.set()
        assert n_begun == 3

    with Registry.open(Settings(data_dir=tmp_path / "data")) as registry:
        anyio.run(scenario, create_app(registry).state.hub)

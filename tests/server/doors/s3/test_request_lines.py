"""Request lines with a whole URL, as the AWS CRT sends them, and the parser that reads them."""

import asyncio
import socket
import threading
from urllib.parse import urlsplit

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deltahub.server.app import create_app
from support.s3.world import FILES, World

KEY = "/ann/tiny/model.safetensors"


def ask(url: str, line: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """(status, body) of the answer to a request with this line."""
    parts = urlsplit(url)
    assert parts.port is not None
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", parts.port), timeout=10) as connection:
        connection.sendall(line + b"\r\n" + head.encode() + b"Connection: close\r\n\r\n")
        got = b""
        while piece := connection.recv(1 << 16):
            got += piece
    answer, _, body = got.partition(b"\r\n\r\n")
    return int(answer.split()[1]), body


def with_host(world: World, url: str) -> dict[str, str]:
    """The headers of a signed request with a range, and its Host."""
    headers = world.ann.signed("GET", KEY, headers={"Range": "bytes=8-455"})
    return {"Host": urlsplit(url).netloc, **headers}


def test_the_hub_takes_a_whole_url_in_the_request_line(world: World) -> None:
    url = world.ann.url
    headers = with_host(world, url)
    status, body = ask(url, f"GET {url}{KEY} HTTP/1.1".encode(), headers)
    assert (status, body) == (206, FILES["model.safetensors"][8:456])
    # Its host counts in place of the header, as that of a proxy's request does, and is signed.
    status, body = ask(url, f"GET {url}{KEY} HTTP/1.1".encode(), {**headers, "Host": "localhost"})
    assert (status, body) == (206, FILES["model.safetensors"][8:456])
    other = url.replace("127.0.0.1", "localhost")
    status, body = ask(url, f"GET {other}{KEY} HTTP/1.1".encode(), headers)
    assert status == 403
    assert b"SignatureDoesNotMatch" in body


def test_two_slashes_of_a_key_are_no_host(world: World) -> None:
    headers = {"Host": urlsplit(world.ann.url).netloc}
    status, body = ask(world.ann.url, b"GET //ann/tiny/config.json HTTP/1.1", headers)
    assert status == 404
    assert b"NoSuchKey" in body


def test_the_servers_parser_is_httptools(world: World) -> None:
    assert issubclass(world.hub.server.config.http_protocol_class, HttpToolsProtocol)


@pytest.mark.parametrize(("protocol", "status"), [(HttpToolsProtocol, 206), (H11Protocol, 404)])
def test_the_other_parser_of_uvicorn_would_not_do(
    world: World, protocol: type[asyncio.Protocol], status: int
) -> None:
    """With h11, which gives the application the URL as a path, engines would find no weights."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(world.hub.registry)
    app.state.hub.s3_door.port = listener.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(app, http=protocol, log_config=None, lifespan="off", ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{app.state.hub.s3_door.port}"
        headers = {"Host": urlsplit(url).netloc, "Range": "bytes=0-1"}
        found, _ = ask(url, f"GET {url}/ann/tiny/config.json HTTP/1.1".encode(), headers)
        assert found == status
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()

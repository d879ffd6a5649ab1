"""Bytes as they cross the server's sockets, headers included: what `/v1/metrics` reports."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass
class Traffic:
    """Totals since the process started. Written by the event loop's thread alone."""

    sent_bytes: int = 0
    received_bytes: int = 0
    requests: int = 0


class _CountingTransport:
    """A transport that counts what is written to it and passes everything on."""

    def __init__(self, transport: asyncio.Transport, traffic: Traffic) -> None:
        self._transport = transport
        self._traffic = traffic

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._traffic.sent_bytes += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


_NOT_HTTP_BODY = (
    b'{"error":{"code":"invalid_request","message":'
    b'"this is not HTTP, or the body before it was longer than announced"}}'
)
_NOT_HTTP = b"\r\n".join(
    [
        b"HTTP/1.1 400 Bad Request",
        b"content-type: application/json",
        b"content-length: %d" % len(_NOT_HTTP_BODY),
        b"connection: close",
        b"",
        _NOT_HTTP_BODY,
    ]
)


def metered_protocol(traffic: Traffic) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, adding to `traffic` what goes through each connection."""

    class MeteredProtocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            counting = _CountingTransport(cast(asyncio.Transport, transport), traffic)
            super().connection_made(cast(asyncio.Transport, counting))

        def data_received(self, data: bytes) -> None:
            traffic.received_bytes += len(data)
            super().data_received(data)

        def on_headers_complete(self) -> None:
            traffic.requests += 1
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            self.transport.write(_NOT_HTTP)
            self.transport.close()

    return MeteredProtocol

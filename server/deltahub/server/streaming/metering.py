"""The server's HTTP protocol: counts bytes for `/v1/metrics`, bounds size and time of heads."""

import asyncio
import json
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deltahub.registry.cancellation import Cancellation
from deltahub.server.streaming.disconnects import STATE_KEY
from deltahub.server.streaming.socket_writer import SocketWriter


@dataclass
class Traffic:
    """Totals since the process started. Only the event loop writes them, except sent_bytes."""

    sent_bytes: int = 0
    received_bytes: int = 0
    requests: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add_sent(self, n: int) -> None:
        """Count sent bytes. Safe from any thread."""
        with self._lock:
            self.sent_bytes += n


class CountingTransport:
    """A transport that counts the bytes written to it and passes them on.

    A SocketWriter is not written: it gets the socket, once the transport's buffer is empty.
    """

    def __init__(self, transport: asyncio.Transport, traffic: Traffic) -> None:
        self._transport = transport
        self._traffic = traffic
        self._writer: SocketWriter | None = None
        self._is_waiting = False

    def write(self, data: bytes | bytearray | memoryview | SocketWriter) -> None:
        if isinstance(data, SocketWriter):
            self._writer, self._is_waiting = data, True
            # With a limit of 0, resume_writing() is called when the buffer is empty.
            self._transport.set_write_buffer_limits(high=0)
            self.attach_if_drained()
            return
        # The client would take these bytes for a part of the SocketWriter's body.
        if self._is_waiting:
            self._is_waiting = False
            self._transport.abort()
            return
        if self._writer is not None and self._writer.has_connection:
            self._writer.cut()
            return
        self._traffic.add_sent(len(data))
        self._transport.write(data)

    def attach_if_drained(self) -> None:
        """Give the socket to the waiting SocketWriter, if the transport's buffer is empty."""
        if (
            not self._is_waiting
            or self._transport.is_closing()
            or self._transport.get_write_buffer_size() > 0
        ):
            return
        self._is_waiting = False
        self._transport.set_write_buffer_limits()
        own_socket = self._transport.get_extra_info("socket")
        assert self._writer is not None
        self._writer.attach(own_socket.fileno(), self._traffic.add_sent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


# Limit for the request line and headers, and for trailers; uvicorn has none.
MAX_HEAD_BYTES = 64 << 10


def _closing_answer(status: str, code: str, message: str) -> bytes:
    """An error answer that closes the connection, for requests that reach no handler."""
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    head = [
        f"HTTP/1.1 {status}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


_NOT_HTTP = _closing_answer(
    "400 Bad Request",
    "invalid_request",
    "this is not HTTP, its headers are too large, or the body before was longer than announced",
)


def metered_protocol(traffic: Traffic, head_s: float) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol, extended to count into `traffic` and to limit heads.

    head_s: longest time, in seconds, that a client may take for a request's line and headers.
    """
    too_slow = _closing_answer(
        "408 Request Timeout",
        "request_timeout",
        f"the line and headers of a request took longer than {head_s:g} s; send it again",
    )

    class MeteredProtocol(HttpToolsProtocol):
        _head_bytes = 0
        _is_in_head = False
        _is_in_body = False
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._cancellation = Cancellation()
            self._counting = CountingTransport(cast(asyncio.Transport, transport), traffic)
            super().connection_made(cast(asyncio.Transport, self._counting))
            self._start_head_timer()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._counting.attach_if_drained()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancellation.cancel()
            self._stop_head_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            traffic.received_bytes += len(data)
            self._head_bytes += len(data)
            super().data_received(data)
            if self.transport.is_closing():
                self._stop_head_timer()
            elif self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("")
            elif self._head_bytes and self._head_timer is None and not self._is_in_body:
                self._start_head_timer()

        def on_message_begin(self) -> None:
            self._is_in_head = True
            super().on_message_begin()
            self.scope["state"][STATE_KEY] = self._cancellation

        def on_headers_complete(self) -> None:
            traffic.requests += 1
            self._is_in_head = False
            self._is_in_body = True
            self._stop_head_timer()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._head_bytes = 0  # bytes that come outside a body are headers or trailers
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._is_in_body = False
            self._stop_head_timer()
            super().on_message_complete()

        def _start_head_timer(self) -> None:
            self._head_timer = self.loop.call_later(head_s, self._on_head_timeout)

        def _stop_head_timer(self) -> None:
            self._head_bytes = 0
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _on_head_timeout(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._start_head_timer()  # a pipelined request waits for the answer before it
            else:
                # A client that has sent nothing would take an answer for that to its next request.
                if self._is_in_head:
                    self.transport.write(too_slow)
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            self.transport.write(_NOT_HTTP)
            self.transport.close()

    return MeteredProtocol

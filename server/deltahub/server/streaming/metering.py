"""The server's connections: bytes counted for `/v1/metrics`, and heads that come to an end."""

import asyncio
import json
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deltahub.server.streaming.socket_writer import Outflow


@dataclass
class Traffic:
    """Totals since the process started. All but sent_bytes: the event loop's alone to write."""

    sent_bytes: int = 0
    received_bytes: int = 0
    requests: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add_sent(self, n: int) -> None:
        """Counts bytes that were sent; safe from any thread."""
        with self._lock:
            self.sent_bytes += n


class CountingTransport:
    """A transport that counts what is written to it and passes everything on.

    An Outflow gets the socket instead, once all that was written before is through.
    """

    def __init__(self, transport: asyncio.Transport, traffic: Traffic) -> None:
        self._transport = transport
        self._traffic = traffic
        self._outflow: Outflow | None = None
        self._is_waiting = False

    def write(self, data: bytes | bytearray | memoryview | Outflow) -> None:
        if isinstance(data, Outflow):
            self._outflow, self._is_waiting = data, True
            # However little is left of what was written before: resume_writing() says when it is
            # through.
            self._transport.set_write_buffer_limits(high=0)
            self.may_be_empty()
            return
        # Whatever this is, the client would take it for a part of that body.
        if self._is_waiting:
            self._is_waiting = False
            self._transport.abort()
            return
        if self._outflow is not None and self._outflow.has_connection:
            self._outflow.cut()
            return
        self._traffic.add_sent(len(data))
        self._transport.write(data)

    def may_be_empty(self) -> None:
        """Gives the socket to the Outflow that waits for it, unless something is to go before."""
        if (
            not self._is_waiting
            or self._transport.is_closing()
            or self._transport.get_write_buffer_size() > 0
        ):
            return
        self._is_waiting = False
        self._transport.set_write_buffer_limits()
        of_us = self._transport.get_extra_info("socket")
        assert self._outflow is not None
        self._outflow.begin(of_us.fileno(), self._traffic.add_sent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


# A request's line and headers, or trailers; uvicorn itself would collect them without end.
MAX_HEAD_BYTES = 64 << 10


def _last_answer(status: str, code: str, message: str) -> bytes:
    """What a connection ends with whose request has no handler."""
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    head = [
        f"HTTP/1.1 {status}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


_NOT_HTTP = _last_answer(
    "400 Bad Request",
    "invalid_request",
    "this is not HTTP, its headers are too large, or the body before was longer than announced",
)


def metered_protocol(traffic: Traffic, head_s: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, adding to `traffic` what goes through each connection.

    head_s: longest that a client may take for a request's line and headers.
    """
    too_slow = _last_answer(
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
            self._counting = CountingTransport(cast(asyncio.Transport, transport), traffic)
            super().connection_made(cast(asyncio.Transport, self._counting))
            self._wait_for_head()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._counting.may_be_empty()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_head()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            traffic.received_bytes += len(data)
            self._head_bytes += len(data)
            super().data_received(data)
            if self.transport.is_closing():
                self._forget_head()
            elif self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("")
            elif self._head_bytes and self._head_timer is None and not self._is_in_body:
                self._wait_for_head()

        def on_message_begin(self) -> None:
            self._is_in_head = True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            traffic.requests += 1
            self._is_in_head = False
            self._is_in_body = True
            self._forget_head()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._head_bytes = 0  # what comes without a body is headers, after it too: trailers
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._is_in_body = False
            self._forget_head()
            super().on_message_complete()

        def _wait_for_head(self) -> None:
            self._head_timer = self.loop.call_later(head_s, self._end_of_patience)

        def _forget_head(self) -> None:
            self._head_bytes = 0
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _end_of_patience(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._wait_for_head()  # of a request that waits for the answer to the one before
            else:
                # To who has asked nothing yet, an answer would be one to what they ask next.
                if self._is_in_head:
                    self.transport.write(too_slow)
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            self.transport.write(_NOT_HTTP)
            self.transport.close()

    return MeteredProtocol

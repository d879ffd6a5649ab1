"""The server's HTTP protocol: counts bytes and connections, bounds size and time of heads."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deltahub.registry.cancellation import Cancellation
from deltahub.server.connections import refusals, request_ids
from deltahub.server.connections.limits import ConnectionLimits
from deltahub.server.connections.refusals import Refusal
from deltahub.server.connections.unsent import UnsentBytes
from deltahub.server.streaming.disconnects import STATE_KEY
from deltahub.server.streaming.socket_writer import SocketWriter


@dataclass
class Traffic:
    """Totals since the process started. Only the event loop writes them, except sent_bytes."""

    sent_bytes: int = 0
    received_bytes: int = 0
    requests: int = 0
    # Answers to what reached no handler, by the code of the error.
    refused: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add_sent(self, n: int) -> None:
        """Count sent bytes. Safe from any thread."""
        with self._lock:
            self.sent_bytes += n


class CountingTransport:
    """A transport that counts the bytes written to it and passes them on.

    A SocketWriter is not written: it gets the socket, once the transport's buffer is empty.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        traffic: Traffic,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """on_close: called when the transport begins to close; it may still have bytes to send."""
        self._transport = transport
        self._traffic = traffic
        self._on_close = on_close
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

    def close(self) -> None:
        """Close the transport once the client has taken all bytes."""
        self._transport.close()
        self._on_close()

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
MAX_HEADERS = 128
# Unsent bytes that a client must take in the time that it has for a block.
_LEAST_TAKEN_BYTES = 64 << 10


def metered_protocol(
    traffic: Traffic, limits: ConnectionLimits, idle_s: float
) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol, extended to count into `traffic`, and to limit clients.

    idle_s: longest time, in seconds, that a client may take for a request's line and headers, and
    for 64 KiB of an answer.
    """
    too_slow = refusals.too_slow(idle_s)
    unsent = UnsentBytes()

    class MeteredProtocol(HttpToolsProtocol):
        _head_bytes = 0
        _is_in_head = False
        _is_in_body = False
        _is_upgraded = False
        _head_timer: asyncio.TimerHandle | None = None
        _unsent_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._cancellation = Cancellation()
            self._counting = CountingTransport(
                cast(asyncio.Transport, transport), traffic, self._watch_unsent
            )
            super().connection_made(cast(asyncio.Transport, self._counting))
            no_room = limits.open(self, self.client[0] if self.client is not None else "")
            if no_room is not None:
                self._refuse(refusals.no_room(no_room))
                return
            self._start_head_timer()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_unsent()
            host = self.client[0] if self.client is not None else ""
            unsent.hold(self, host, self._counting.get_write_buffer_size())

        def resume_writing(self) -> None:
            self._stop_unsent_timer()
            super().resume_writing()
            self._counting.attach_if_drained()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancellation.cancel()
            limits.close(self)
            self._stop_head_timer()
            self._stop_unsent_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            traffic.received_bytes += len(data)
            self._head_bytes += len(data)
            if self._is_upgraded:
                return  # the connection closes after the answer
            self._unset_keepalive_if_required()
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                self._is_upgraded = True
            except httptools.HttpParserError as error:
                first = data if self.cycle is None else b""
                self._refuse(refusals.unreadable(error, first))
            if self.transport.is_closing():
                self._stop_head_timer()
            elif self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(refusals.not_http())
            elif self._head_bytes and self._head_timer is None and not self._is_in_body:
                self._start_head_timer()

        def on_message_begin(self) -> None:
            self._is_in_head = True
            super().on_message_begin()
            self.scope["state"][STATE_KEY] = self._cancellation

        def on_header(self, name: bytes, value: bytes) -> None:
            if len(self.headers) >= MAX_HEADERS:
                raise refusals.bad_request(f"a request has at most {MAX_HEADERS} headers")
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            traffic.requests += 1
            self._is_in_head = False
            self.url = refusals.origin_target(
                self.parser.get_method().decode("latin-1"),
                self.url,
                self.parser.get_http_version(),
                self.headers,
            )
            if self.parser.should_upgrade():
                refusals.check_upgrade(self.headers)
            self._is_in_body = True
            self._stop_head_timer()
            limits.set_busy(self)
            if self.client is not None:
                limits.proxies.warn_of_unnamed(self.client[0], self.headers)
            super().on_headers_complete()
            if self.parser.should_upgrade():
                # The parser reads no request after one that offers another protocol.
                self.cycle.keep_alive = False

        def on_body(self, body: bytes) -> None:
            self._head_bytes = 0  # bytes that come outside a body are headers or trailers
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._is_in_body = False
            self._stop_head_timer()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            if not self.pipeline:
                limits.set_idle(self)
            super().on_response_complete()

        def abort(self) -> None:
            """Close the connection and drop the bytes that its client did not take."""
            self.transport.abort()

        def end_idle(self) -> None:
            """Close the connection, which has no request: there are too many connections."""
            if self._is_in_head:
                self._refuse(refusals.no_room("the hub has too many connections: send it again"))
            else:
                self.transport.close()

        def _start_head_timer(self) -> None:
            self._head_timer = self.loop.call_later(idle_s, self._on_head_timeout)

        def _stop_head_timer(self) -> None:
            self._head_bytes = 0
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _on_head_timeout(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._start_head_timer()  # a pipelined request waits for the answer before it
            elif self._is_in_head:
                self._refuse(too_slow)
            else:
                # A client that has sent nothing would take an answer for that to its next request.
                self.transport.close()

        def _watch_unsent(self) -> None:
            """Abort the connection if its client takes less than 64 KiB, and not all, in idle_s."""
            if self._unsent_timer is not None:
                return
            left = self._counting.get_write_buffer_size()

            def check() -> None:
                self._unsent_timer = None
                if self._counting.get_write_buffer_size() > left - _LEAST_TAKEN_BYTES:
                    self.transport.abort()
                else:
                    self._watch_unsent()

            if left:
                self._unsent_timer = self.loop.call_later(idle_s, check)

        def _stop_unsent_timer(self) -> None:
            unsent.drop(self)
            if self._unsent_timer is not None:
                self._unsent_timer.cancel()
                self._unsent_timer = None

        def _refuse(self, refusal: Refusal) -> None:
            traffic.refused[refusal.code] += 1
            # After a part of another answer, a client would take these bytes for the rest of it.
            if (
                self.cycle is None
                or self.cycle.response_complete
                or not self.cycle.response_started
            ):
                self.transport.write(refusal.to_bytes(request_ids.id_for(self.headers or ())))
            self.transport.close()

    return MeteredProtocol

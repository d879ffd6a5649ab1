"""HTTP requests to one hub: kept connections, retries, and uploads with sendfile."""

import contextlib
import functools
import http.client
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, unquote, urlencode

from deltahub.client.api.pace import PROGRESS_BYTES, Pace, PacedResponse
from deltahub.client.api.sending import send_file
from deltahub.client.api.wire import (
    SMALL_ANSWER,
    VISIBLE,
    Answer,
    Renamed,
    Reply,
    address_of,
    is_broken_wire,
    is_reusable,
    raise_error,
    unreachable,
)
from deltahub.client.errors import Busy, HubError, InvalidArgument

_T = TypeVar("_T")
_CONNECT_TIMEOUT_S = 15.0
# Of a whole small answer, and of the headers of a large one. Longer than a download waits in the
# hub's queue before the hub answers that it is busy.
_READ_TIMEOUT_S = 180.0
# For requests that the hub answers after long work: syncing an upload, decoding a pack.
LONG_TIMEOUT_S = 900.0
# How long a busy hub is tried again, and the longest pause between tries that it may ask for.
BUSY_PATIENCE_S = 3600.0
_LONGEST_PAUSE_S = 60.0
# Between two reports of the same wait.
_REPORT_EVERY_S = 60.0
_TRANSIENT_STATUS = frozenset({408, 429, 502, 503, 504})

Query = Mapping[str, str | int | float | Sequence[str] | None]
Send = Callable[[socket.socket, Pace], None]


@dataclass(frozen=True)
class _Request:
    method: str
    target: str
    body: bytes | None
    headers: Mapping[str, str]


class Transport:
    """All requests to one hub. Safe to use from several threads.

    patience_s: seconds for which a broken connection is tried again. Before the hub's first
    answer it is 0.5 s, so that a wrong address is reported quickly.
    """

    def __init__(
        self, url: str, token: str | None, *, patience_s: float = 30.0, user_agent: str = "deltahub"
    ) -> None:
        parts = address_of(url)
        if token and not VISIBLE.fullmatch(token):
            # The message must not contain the token, because messages end up in logs.
            raise InvalidArgument("the token holds characters that no token has: copy it once more")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._token = token
        self._agent = user_agent
        self._patience_s = patience_s
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._has_answered = False
        self._listeners: list[Callable[[str], None]] = []
        self._reported_at = float("-inf")

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextlib.contextmanager
    def reporting_waits(self, listener: Callable[[str], None]) -> Iterator[None]:
        """Within this context, calls `listener` at most once a minute while the hub is busy."""
        with self._lock:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)

    def _report_wait(self, busy: Busy) -> None:
        with self._lock:
            is_time = time.monotonic() - self._reported_at >= _REPORT_EVERY_S
            listeners = [*self._listeners] if is_time else []
            if listeners:
                self._reported_at = time.monotonic()
        for listener in listeners:
            listener(f"waiting: the hub is busy ({busy.message})")

    # -- whole answers ------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        json_body: Any = None,
        timeout_s: float = _READ_TIMEOUT_S,
        limit: int = SMALL_ANSWER,
    ) -> Answer:
        """The answer to a request that is safe to repeat. HubError for a status from 300 on.

        limit: bytes of the answer's body. timeout_s: for all of a small answer; a larger one only
        begins by then.
        """
        headers: dict[str, str] = {}
        if json_body is not None:
            body = json.dumps(json_body, separators=(",", ":")).encode()
            headers["Content-Type"] = "application/json"
        elif body is not None:
            headers["Content-Type"] = "application/octet-stream"

        def once() -> Answer:
            with self.open(
                method,
                path,
                query=query,
                body=body,
                headers=headers,
                timeout_s=timeout_s,
                is_stream=limit > SMALL_ANSWER,
            ) as reply:
                return reply.read_all(limit)

        return self.with_retries(once)

    def send_file(
        self,
        path: str,
        file: BinaryIO,
        start: int,
        total: int,
        *,
        on_sent: Callable[[int], None] = lambda n: None,
    ) -> Answer:
        """The answer to a PUT of bytes [start, total) of a file.

        Not retried, because the caller must first ask how many bytes the hub has.
        """
        headers = {
            "Content-Length": str(total - start),
            "Content-Type": "application/octet-stream",
        }
        if start:
            part = f"{start}-{total - 1}" if start < total else "*"  # "*": no bytes are left
            headers["Content-Range"] = f"bytes {part}/{total}"

        def send(sock: socket.socket, pace: Pace) -> None:
            send_file(sock, file, start, total, pace, on_sent)

        with self.open(
            "PUT", path, headers=headers, send=send, timeout_s=LONG_TIMEOUT_S, is_stream=False
        ) as reply:
            return reply.read_all(SMALL_ANSWER)

    # -- bodies on the wire ----------------------------------------------------------------

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        send: Send | None = None,
        timeout_s: float = _READ_TIMEOUT_S,
        is_stream: bool = True,
    ) -> Iterator[Reply]:
        """A response. Not retried. HubError for a status from 300 on, OSError from the network.

        A redirect to another path of the hub, of a repository that was renamed, is followed once.
        timeout_s: of the answer's headers, and of its body unless is_stream: then the body must
        only keep the pace.
        """
        request = _Request(method, self._target(path, query), body, headers or {})
        with contextlib.ExitStack() as stack:
            try:
                asked = self._open(request, send, timeout_s, is_stream=is_stream)
                reply = stack.enter_context(asked)
            except Renamed as renamed:
                if send is not None:
                    raise
                request = replace(request, target=renamed.target)
                asked = self._open(request, send, timeout_s, is_stream=is_stream)
                reply = stack.enter_context(asked)
            yield reply

    @contextlib.contextmanager
    def _open(
        self, request: _Request, send: Send | None, timeout_s: float, *, is_stream: bool
    ) -> Iterator[Reply]:
        connection = self._acquire()
        response: http.client.HTTPResponse | None = None
        is_sent = False
        pace = Pace(timeout_s)
        connection.response_class = functools.partial(  # type: ignore[assignment]  # it makes one
            PacedResponse, pace=pace
        )
        try:
            connection.sock.settimeout(timeout_s)
            try:
                self._send(connection, request, send)
                if send is not None:
                    pace.stream()
                    send(connection.sock, pace)
                is_sent = True
            except (BrokenPipeError, ConnectionResetError):
                # The hub may have refused the request before the end of the body. Then its answer
                # can be read; if there is none, reading it raises an error.
                pass
            pace.expect(timeout_s)
            response = connection.getresponse()
            self._has_answered = True
            below = request.target.removeprefix(self._prefix).partition("?")[0]
            reply = Reply(response, f"{request.method} {self.url}{unquote(below)}")
            if not 200 <= response.status < 300:
                raise_error(reply, self.url)
            if is_stream:
                pace.stream()
            yield reply
        finally:
            # The rest of an unread body would be taken for the next answer.
            if is_sent and response is not None and response.isclosed():
                self._release(connection)
            else:
                connection.close()

    def with_retries(
        self, attempt: Callable[[], _T], progress: Callable[[], int] = lambda: 0
    ) -> _T:
        """The result of `attempt`, retried while the network fails or the hub cannot answer.

        progress: the number of bytes that the attempts have moved so far.

        Raises HubUnreachable after patience_s. That time starts again whenever PROGRESS_BYTES more
        have moved, so that a long transfer survives any number of short breaks, but not a hub that
        sends a few bytes for each connection. Time in which the hub is busy does not count;
        BUSY_PATIENCE_S limits it. `attempt` must be safe to repeat.
        """
        start = time.monotonic()
        busy_since: float | None = None
        tries = 0
        reached = progress()
        while True:
            try:
                return attempt()
            except HubError as exc:
                if exc.status not in _TRANSIENT_STATUS:
                    raise
                failure: Exception = exc
            except (OSError, http.client.HTTPException) as exc:
                if not is_broken_wire(exc):
                    raise
                if isinstance(exc, ssl.SSLCertVerificationError | socket.gaierror):
                    raise unreachable(exc, self.url) from exc
                failure = exc
            if isinstance(failure, Busy):
                # A busy hub keeps nothing of an attempt, so bytes sent are no progress.
                start, reached = time.monotonic(), max(reached, progress())
                busy_since = start if busy_since is None else busy_since
                if start - busy_since >= BUSY_PATIENCE_S:
                    raise failure
                self._report_wait(failure)
                tries = 0
            elif progress() - reached >= PROGRESS_BYTES:
                start, tries, reached = time.monotonic(), 0, progress()
                busy_since = None
            tries += 1
            allowed = self._patience_s if self._has_answered else 0.5
            if tries > 1 and time.monotonic() - start >= allowed:
                if isinstance(failure, HubError):
                    raise failure
                raise unreachable(failure, self.url) from failure
            pause = min(0.1 * 2**tries, 4.0) * random.uniform(0.5, 1.0)
            requested = failure.retry_after_s if isinstance(failure, HubError) else 0.0
            time.sleep(max(pause, min(requested, _LONGEST_PAUSE_S)))

    # -- connections -----------------------------------------------------------------------

    def _send(
        self, connection: http.client.HTTPConnection, request: "_Request", send: Send | None
    ) -> None:
        """Sends the first line, the headers and the body."""
        connection.putrequest(request.method, request.target, skip_accept_encoding=True)
        connection.putheader("User-Agent", self._agent)
        if self._token:
            connection.putheader("Authorization", f"Bearer {self._token}")
        for key, value in request.headers.items():
            connection.putheader(key, value)
        has_body = request.body is not None or request.method in ("POST", "PUT")
        if send is None and has_body:
            connection.putheader("Content-Length", str(len(request.body or b"")))
        connection.endheaders(request.body)

    def _target(self, path: str, query: Query | None) -> str:
        parameters = {key: value for key, value in (query or {}).items() if value is not None}
        target = self._prefix + quote(path, safe="/~")
        return f"{target}?{urlencode(parameters, doseq=True)}" if parameters else target

    def _acquire(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if is_reusable(connection.sock):
                return connection
            connection.close()
        connection = (
            http.client.HTTPSConnection(
                self._host, self._port, timeout=_CONNECT_TIMEOUT_S, context=self._tls
            )
            if self._tls
            else http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT_S)
        )
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _release(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._idle.append(connection)

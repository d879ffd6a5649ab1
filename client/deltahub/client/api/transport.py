"""HTTP to one hub: kept connections, retries, and bulk bytes without copies in Python."""

import contextlib
import http.client
import json
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from deltahub.client.api.wire import Answer, Reply, is_broken_wire, is_quiet, refuse, unreachable
from deltahub.client.errors import Busy, HubError, InvalidArgument, LocalFileChanged

_T = TypeVar("_T")
_CONNECT_TIMEOUT_S = 15.0
# More than the hub waits for a download's turn before it says that it is busy.
_READ_TIMEOUT_S = 180.0
# Where the hub works before it answers: it syncs an upload, or decodes a whole pack.
LONG_TIMEOUT_S = 900.0
_SEND_STEP = 8 << 20
# How long a hub is waited for that only says that it is busy, and the longest pause that it may
# ask for in between.
BUSY_PATIENCE_S = 3600.0
_LONGEST_PAUSE_S = 60.0
# Who waits is told so again after this.
_TELL_EVERY_S = 60.0
# What may stand in a header and in the first line of a request.
_VISIBLE = re.compile("[!-~]*")
_TRANSIENT_STATUS = frozenset({408, 429, 502, 503, 504})

Query = Mapping[str, str | int | None]
Send = Callable[[http.client.HTTPConnection], None]


class Transport:
    """All requests to one hub. Safe to use from several threads.

    patience_s: how long a broken connection is tried again after the hub has answered once;
    before that two tries must do, so that a wrong address is reported at once.
    """

    def __init__(
        self, url: str, token: str | None, *, patience_s: float = 30.0, user_agent: str = "deltahub"
    ) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            self._port = parts.port
            host = (parts.hostname or "").encode("idna")
        except ValueError as exc:
            raise InvalidArgument(f"{url!r} is not the address of a hub: {exc}") from exc
        if not _VISIBLE.fullmatch(host.decode()) or not _VISIBLE.fullmatch(parts.path):
            raise InvalidArgument(
                f"{url!r} is not the address of a hub: write blanks and letters beyond ASCII as %XX"
            )
        if token and not _VISIBLE.fullmatch(token):
            # Never the token itself: this ends up in logs.
            raise InvalidArgument("the token holds characters that no token has: copy it once more")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgument(f"{url!r} is not the address of a hub: use http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._host = parts.hostname
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._token = token
        self._agent = user_agent
        self._patience_s = patience_s
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._has_answered = False
        self._listeners: list[Callable[[str], None]] = []
        self._told_at = float("-inf")

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextlib.contextmanager
    def telling(self, listener: Callable[[str], None]) -> Iterator[None]:
        """Meanwhile `listener` is told, once a minute at most, that a busy hub is waited for."""
        with self._lock:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)

    def _tell_of_wait(self, busy: Busy) -> None:
        with self._lock:
            is_time = time.monotonic() - self._told_at >= _TELL_EVERY_S
            listeners = [*self._listeners] if is_time else []
            if listeners:
                self._told_at = time.monotonic()
        for listener in listeners:
            listener(f"waiting: the hub is busy ({busy.message})")

    # -- whole answers ---------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        json_body: Any = None,
        timeout_s: float = _READ_TIMEOUT_S,
    ) -> Answer:
        """The answer to a request that is safe to repeat. HubError for any status from 300 on."""
        headers: dict[str, str] = {}
        if json_body is not None:
            body = json.dumps(json_body, separators=(",", ":")).encode()
            headers["Content-Type"] = "application/json"
        elif body is not None:
            headers["Content-Type"] = "application/octet-stream"

        def once() -> Answer:
            with self.open(
                method, path, query=query, body=body, headers=headers, timeout_s=timeout_s
            ) as reply:
                return reply.whole()

        return self.patiently(once)

    def send_file(
        self,
        path: str,
        file: BinaryIO,
        start: int,
        total: int,
        *,
        on_sent: Callable[[int], None] = lambda n: None,
    ) -> Answer:
        """The answer to a PUT of file[start:total]; the kernel copies, Python does not.

        Not repeated here: who calls must ask first where the hub's copy ends.
        """
        headers = {
            "Content-Length": str(total - start),
            "Content-Type": "application/octet-stream",
        }
        if start:
            part = f"{start}-{total - 1}" if start < total else "*"  # "*": no bytes are left
            headers["Content-Range"] = f"bytes {part}/{total}"

        def send(connection: http.client.HTTPConnection) -> None:
            offset = start
            while offset < total:
                step = min(_SEND_STEP, total - offset)
                n = connection.sock.sendfile(file, offset, step)
                offset += n
                on_sent(n)
                if n != step:
                    raise LocalFileChanged(f"{file.name} became shorter while it was pushed")

        with self.open("PUT", path, headers=headers, send=send, timeout_s=LONG_TIMEOUT_S) as reply:
            return reply.whole()

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
    ) -> Iterator[Reply]:
        """One attempt. Raises HubError for a status from 300 on, OSError for a broken wire."""
        connection = self._acquire()
        response: http.client.HTTPResponse | None = None
        is_sent = False
        try:
            connection.sock.settimeout(timeout_s)
            is_sent = self._send(connection, method, path, query, body, headers, send)
            response = connection.getresponse()
            self._has_answered = True
            reply = Reply(response)
            if response.status >= 300:
                refuse(reply.whole(), self.url)
            yield reply
        finally:
            # A body that was not read to its end would be taken for the next answer.
            if is_sent and response is not None and response.isclosed():
                self._release(connection)
            else:
                connection.close()

    def patiently(self, attempt: Callable[[], _T], progress: Callable[[], int] = lambda: 0) -> _T:
        """What `attempt` returns, tried again while the wire breaks or the hub cannot answer.

        HubUnreachable when patience ends; it starts afresh whenever `progress` has changed, so
        that a transfer of hours survives any number of short breaks. It does not run while the
        hub says that it is merely busy; that has a bound of its own.
        Only for what is safe to repeat.
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
                # A busy hub has taken nothing of this attempt, whatever was put on the wire.
                start, reached = time.monotonic(), progress()
                busy_since = start if busy_since is None else busy_since
                if start - busy_since >= BUSY_PATIENCE_S:
                    raise failure
                self._tell_of_wait(failure)
                tries = 0
            elif progress() != reached:
                start, tries, reached = time.monotonic(), 0, progress()
                busy_since = None
            tries += 1
            allowed = self._patience_s if self._has_answered else 0.5
            if tries > 1 and time.monotonic() - start >= allowed:
                if isinstance(failure, HubError):
                    raise failure
                raise unreachable(failure, self.url) from failure
            pause = min(0.1 * 2**tries, 4.0) * random.uniform(0.5, 1.0)
            asked = failure.retry_after_s if isinstance(failure, HubError) else 0.0
            time.sleep(max(pause, min(asked, _LONGEST_PAUSE_S)))

    # -- connections -----------------------------------------------------------------------

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        send: Send | None,
    ) -> bool:
        """Whether all of the request went out."""
        target = self._prefix + quote(path, safe="/~")
        asked = {key: value for key, value in (query or {}).items() if value is not None}
        if asked:
            target += "?" + urlencode(asked)
        connection.putrequest(method, target, skip_accept_encoding=True)
        connection.putheader("User-Agent", self._agent)
        if self._token:
            connection.putheader("Authorization", f"Bearer {self._token}")
        for key, value in (headers or {}).items():
            connection.putheader(key, value)
        if send is None and (body is not None or method in ("POST", "PUT")):
            connection.putheader("Content-Length", str(len(body or b"")))
        try:
            connection.endheaders(body)
            if send is not None:
                send(connection)
        except (BrokenPipeError, ConnectionResetError):
            # The hub may have refused before the end of the body; then its answer is there to
            # read, and if it is not, reading it raises again.
            return False
        return True

    def _acquire(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if is_quiet(connection.sock):
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

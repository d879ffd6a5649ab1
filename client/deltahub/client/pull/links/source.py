"""The object store as a pull sees it: links are followed, and given up for good when it fails."""

import contextlib
import http.client
import ipaddress
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from deltahub.client.api.transport import Query, Transport
from deltahub.client.api.wire import Reply, is_broken_wire
from deltahub.client.errors import BadResponse, HubError, InvalidArgument
from deltahub.client.records import FrameLink
from deltahub.codecs.errors import CorruptFrame

# Of the headers of an answer.
_TIMEOUT_S: Final = 30.0
# An answer may take this long, and longer by its bytes at this rate. The hub serves what is slower.
_LATE_S: Final = 60.0
_LEAST_RATE: Final = 16 << 10
_STEP: Final = 256 << 10
# Links whose bytes were wrong, after which the rest of the pull comes through the hub.
_MOST_WRONG: Final = 3
_OFF: Final = frozenset({"", "0", "false", "no", "off"})


class LinkFailed(Exception):
    """A link did not give its bytes. The message says why, without the link's signature."""


class StoreUnreachable(LinkFailed):
    """No connection to the object store can be made from here."""


class WrongBytes(LinkFailed):
    """An answer that the object store should not give."""


class LinkSource:
    """The links of one pull. Safe to use from several threads.

    received: bytes that came by links. failures: links that gave no bytes, or wrong ones.
    """

    def __init__(self, hub_url: str, note: Callable[[str], None], *, is_asked: bool = True) -> None:
        self._hub = urlsplit(hub_url)
        self._note = note
        self._lock = threading.Lock()
        self._transport: _LinkTransport | None = None
        self._wrong = 0
        self._is_off = not is_asked or (
            os.environ.get("DELTAHUB_NO_LINKS", "").strip().lower() not in _OFF
        )
        self.origin = ""
        self.received = 0
        self.failures = 0

    @property
    def is_on(self) -> bool:
        return bool(self.origin) and not self._is_off

    def begin(self, origin: str | None) -> None:
        """The hub gives links that lead to this origin, or none."""
        if self._is_off or origin == (self.origin or None):
            return
        if origin is None or self.origin:
            self.turn_off("the hub gives links for some files only")
        elif self._hub.scheme == "https" and not origin.startswith("https:"):
            self.turn_off("its connection would not be encrypted, as the hub's is")
        else:
            try:
                transport = _LinkTransport(origin, is_hub_local=_is_local(self._hub.hostname or ""))
            except InvalidArgument as exc:
                raise BadResponse(f"the hub names an odd object store: {exc.message}") from exc
            if transport.url != origin:
                raise BadResponse("the hub names an object store with a path")
            self._transport, self.origin = transport, origin

    def turn_off(self, reason: str) -> None:
        """From now on everything comes through the hub."""
        with self._lock:
            if self._is_off:
                return
            self._is_off = True
        self._note(
            f"the hub's object store is not read directly: {reason}; the hub sends its bytes"
        )

    def failed(self, failure: LinkFailed) -> None:
        """Count a failure. Links end for this pull where the store is out of reach, or lies."""
        with self._lock:
            self.failures += 1
            self._wrong += isinstance(failure, WrongBytes)
            is_lying = self._wrong >= _MOST_WRONG
        if isinstance(failure, StoreUnreachable) or is_lying:
            self.turn_off(str(failure))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @contextlib.contextmanager
    def open(self, link: FrameLink) -> Iterator["LinkBody"]:
        """The bytes of a link. LinkFailed, also while the body is read."""
        assert self._transport is not None
        headers = {"Range": f"bytes={link.start}-{link.end - 1}"}
        try:
            with self._transport.open(
                "GET", link.url[len(self.origin) :], headers=headers, timeout_s=_TIMEOUT_S
            ) as reply:
                _check(reply, link)
                body = LinkBody(reply, self._count)
                yield body
                reply.drain()
        except HubError as exc:
            # Its message may quote the link.
            kind = WrongBytes if isinstance(exc, BadResponse) else LinkFailed
            raise kind(f"it answered {exc.status} to a link") from exc
        except (OSError, http.client.HTTPException) as exc:
            if not is_broken_wire(exc):
                raise
            raise LinkFailed(f"the connection broke: {type(exc).__name__}") from exc

    def _count(self, size: int) -> None:
        with self._lock:
            self.received += size


class LinkBody:
    """The body of an answer to a link, frame by frame. A frame ends where the hub said."""

    def __init__(self, reply: Reply, on_received: Callable[[int], None]) -> None:
        self._reply = reply
        self._on_received = on_received
        self._left = 0
        self._late = time.monotonic() + _LATE_S

    def begin_frame(self, length: int) -> None:
        self._left = length

    def end_frame(self) -> None:
        """CorruptFrame unless all bytes of the frame were read."""
        if self._left:
            raise CorruptFrame(f"a frame is {self._left} bytes shorter than the hub says")

    def read_into(self, out: memoryview) -> None:
        """Fills `out`. CorruptFrame beyond the end of the frame, ConnectionError."""
        if len(out) > self._left:
            raise CorruptFrame("a frame is longer than the hub says")
        for start in range(0, len(out), _STEP):
            part = out[start : start + _STEP]
            self._reply.read_into(part)
            self._left -= len(part)
            self._late += len(part) / _LEAST_RATE
            self._on_received(len(part))
            if time.monotonic() > self._late:
                raise TimeoutError("the object store is too slow")


class _LinkTransport(Transport):
    """Connections to the object store: without a token, without redirects."""

    def __init__(self, origin: str, *, is_hub_local: bool) -> None:
        super().__init__(origin, None)
        self._is_hub_local = is_hub_local

    def _target(self, path: str, query: Query | None) -> str:
        return path  # quoted already, as it was signed

    def _acquire(self) -> http.client.HTTPConnection:
        try:
            connection = super()._acquire()
            peer = connection.sock.getpeername()[0]
        except OSError as exc:
            raise StoreUnreachable(f"{self.url} cannot be reached from here ({exc})") from exc
        # A hub must not make this machine send requests to its own services.
        if _is_local(peer) and not self._is_hub_local:
            connection.close()
            raise StoreUnreachable(f"{self.url} is this machine, and the hub is not")
        return connection


def _is_local(host: str) -> bool:
    """Whether a host is this machine, or an address that means something on this machine only."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return address.is_loopback or address.is_link_local or address.is_unspecified


def _check(reply: Reply, link: FrameLink) -> None:
    """WrongBytes unless the answer is the range of the link."""
    size = link.end - link.start
    if reply.status != 206:
        raise WrongBytes(f"it answered {reply.status} to a range")
    length = reply.headers.get("Content-Length", "")
    if length != str(size) or reply.headers.get("Transfer-Encoding"):
        raise WrongBytes(f"it announced {length[:20] or 'no number of'} bytes instead of {size}")
    place = reply.headers.get("Content-Range", "")
    if not re.fullmatch(rf"bytes {link.start}-{link.end - 1}/(\d+|\*)", place):
        raise WrongBytes("it sent another range than was asked")

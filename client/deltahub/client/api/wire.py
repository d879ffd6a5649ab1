"""The hub's HTTP answers: their bodies, the errors in them, and network failures."""

import errno
import http.client
import re
import select
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from deltahub.client.api.parsing import parse_json
from deltahub.client.errors import BadResponse, HubUnreachable, InvalidArgument, error_of

_T = TypeVar("_T")

# Bytes of an answer that describes one thing or a page of things, and of one that describes every
# file or tensor of a revision.
SMALL_ANSWER: Final = 16 << 20
LARGE_ANSWER: Final = 256 << 20
# Characters that a header and the first line of a request may contain.
VISIBLE: Final = re.compile("[!-~]*")
_MAX_ERROR: Final = 1 << 20
_MAX_MESSAGE: Final = 4096
_STEP: Final = 64 << 10
# The path of a repository of the same hub; another host would begin with two slashes.
_REPOSITORY: Final = re.compile(r"(?:/[\w.~%-]+)*/v1/repositories/[!-~]+")
_CODE: Final = re.compile("[a-z0-9_]{1,64}")
_NETWORK_ERRNO = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EADDRNOTAVAIL}
)


@dataclass(frozen=True)
class Answer:
    """An answer with its whole body in memory. request: its method and URL, for messages."""

    request: str
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The JSON of the body. BadResponse if it is odd."""
        return self.read(lambda value: value)

    def read(self, parse: Callable[[Any], _T]) -> _T:
        """What `parse` makes of the JSON of the body. BadResponse, with the URL, if it is odd."""
        try:
            return parse(parse_json(self.body))
        except BadResponse as exc:
            raise odd_answer(self.request, exc.message) from exc


class Reply:
    """An answer whose body has not been read yet."""

    def __init__(self, response: http.client.HTTPResponse, request: str) -> None:
        self._response = response
        self.request = request
        self.status = response.status
        self.headers = response.headers

    def read_into(self, out: memoryview) -> None:
        """Fills `out` exactly. ConnectionError when the body ends before that."""
        if self.read_up_to(out) < len(out):
            raise body_ended_early()

    def read_up_to(self, out: memoryview) -> int:
        """Fills `out` as far as the body goes; the number of bytes read."""
        done = 0
        while done < len(out):
            n = self._response.readinto(out[done:])
            if n <= 0:
                break
            done += n
        return done

    def drain(self) -> None:
        """Reads the end of a body whose bytes were all read, so that the connection is kept."""
        try:
            self._response.readinto(bytearray(1))
        except (OSError, http.client.HTTPException):
            self._response.close()

    def read_all(self, limit: int) -> Answer:
        """The answer with its whole body, of at most `limit` bytes (else BadResponse), in memory.

        Memory grows with the bytes that arrive, whatever length the hub announces.
        """
        body = bytearray()
        step = memoryview(bytearray(_STEP))
        while n := self._response.readinto(step):
            body += step[:n]
            if len(body) > limit:
                raise odd_answer(self.request, f"it is larger than {limit} bytes")
        if self._response.length:
            raise ConnectionResetError("the connection closed in the middle of an answer")
        return Answer(self.request, self.status, self.headers, bytes(body))


def odd_answer(request: str, reason: str) -> BadResponse:
    """The error for an answer that no hub should send."""
    return BadResponse(f"the hub's answer to {request} is odd: {reason}")


def body_ended_early() -> ConnectionResetError:
    return ConnectionResetError("the connection closed in the middle of the body")


class Renamed(BadResponse):
    """The hub sends to another of its own paths, because a repository was renamed."""

    def __init__(self, message: str, target: str) -> None:
        super().__init__(message, status=307)
        self.target = target


def address_of(url: str) -> SplitResult:
    """The parts of a hub's address. InvalidArgument unless it is http(s)://HOST[:PORT][/PATH]."""
    shown = without_secrets(url)
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        _ = parts.port
        host = (parts.hostname or "").encode("idna")
    except ValueError as exc:
        raise InvalidArgument(f"{shown!r} is not the address of a hub: {exc}") from exc
    if not VISIBLE.fullmatch(host.decode()) or not VISIBLE.fullmatch(parts.path):
        raise InvalidArgument(
            f"{shown!r} is not the address of a hub: write blanks and letters beyond ASCII as %XX"
        )
    if parts.username is not None or parts.query:
        raise InvalidArgument(
            f"the address {shown} holds a user, a password or a query: give the token with"
            " --token, DELTAHUB_TOKEN or `deltahub login`"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(f"{shown!r} is not the address of a hub: use http://HOST:PORT")
    return parts


def raise_error(reply: Reply, url: str) -> None:
    """Raises the error for an answer whose status is not 200 to 299."""
    target = reply.headers.get("Location", "")
    if reply.status == 307 and _is_repository(target):
        reply.read_all(_MAX_ERROR)
        raise Renamed(f"{url} answers 307 and sends to {target.partition('?')[0]}", target)
    if not 400 <= reply.status < 600:
        # Not followed: a hub must not send the token, or what is pushed, to another place.
        target = without_secrets(reply.headers.get("Location", "somewhere else"))
        raise BadResponse(
            f"{url} answers {reply.status} and sends to {target}: use that address if you trust it",
            status=reply.status,
        )
    answer = reply.read_all(_MAX_ERROR)
    code, message = _error_in(answer)
    if not message:
        message = f"the hub answered {answer.status} {http.client.responses.get(answer.status, '')}"
    error = error_of(code, message.strip(), answer.status)
    seconds = answer.headers.get("Retry-After", "")
    if seconds.isascii() and seconds.isdecimal() and len(seconds) < 6:
        error.retry_after_s = float(seconds)
    raise error


def _is_repository(target: str) -> bool:
    # A proxy takes `..` for the folder above, and may serve others than the hub there.
    parts = unquote(target.partition("?")[0]).split("/")
    return _REPOSITORY.fullmatch(target) is not None and {".", ".."}.isdisjoint(parts)


def without_secrets(url: str) -> str:
    """The URL without user, password and query: a signed link has its signature in the query."""
    return re.sub("^([A-Za-z]+://)?[^/]*@", r"\1", re.split("[?#]", url)[0])


def _error_in(answer: Answer) -> tuple[str | None, str]:
    """The code and the message of an error; (None, "") for an answer that is not a hub's."""
    if answer.body:
        try:
            sent = parse_json(answer.body)["error"]
            code, message = sent["code"], sent["message"]
        except (BadResponse, KeyError, TypeError):
            return None, ""
    else:  # of HEAD: the hub sends both in headers
        code, message = (answer.headers.get(f"X-Error-{key}") for key in ("Code", "Message"))
    if not isinstance(code, str) or not _CODE.fullmatch(code) or not isinstance(message, str):
        return None, ""
    return code, message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}..."


def is_broken_wire(exc: BaseException) -> bool:
    """Whether the network failed, and not this machine's disk."""
    if isinstance(exc, ConnectionError | TimeoutError | ssl.SSLError | socket.gaierror):
        return True
    if isinstance(exc, http.client.HTTPException):
        return True
    return isinstance(exc, OSError) and exc.errno in _NETWORK_ERRNO


def unreachable(exc: BaseException, url: str) -> HubUnreachable:
    """The error for a connection that stayed broken."""
    if isinstance(exc, ConnectionRefusedError):
        return HubUnreachable(f"no hub answers at {url}: is `deltahub serve` running there?")
    if isinstance(exc, socket.gaierror):
        return HubUnreachable(f"the host of {url} is not known: check the address")
    if isinstance(exc, ssl.SSLError):
        return HubUnreachable(f"no trusted connection to {url}: {exc}")
    if isinstance(exc, TimeoutError):
        return HubUnreachable(f"the hub at {url} is too slow: {exc or 'no answer in time'}")
    return HubUnreachable(f"the connection to {url} broke: {exc or type(exc).__name__}")


def is_reusable(sock: socket.socket | None) -> bool:
    """Whether a kept connection can carry another request: a closed one is readable."""
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)

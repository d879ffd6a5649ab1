"""The hub's HTTP answers: their bodies, the errors in them, and network failures."""

import contextlib
import errno
import http.client
import json
import re
import select
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from deltahub.client.errors import BadResponse, HubUnreachable, error_of

_MAX_ANSWER = 512 << 20
_NETWORK_ERRNO = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EADDRNOTAVAIL}
)


@dataclass(frozen=True)
class Answer:
    """An answer with its whole body in memory."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as exc:
            raise BadResponse(f"the hub sent something that is not JSON: {exc}") from exc


class Reply:
    """An answer whose body has not been read yet."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
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
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._response.read(1)

    def read_all(self) -> Answer:
        """The answer with the rest of its body in memory. BadResponse above 512 MiB."""
        body = self._response.read(_MAX_ANSWER)
        if self._response.length:
            raise ConnectionResetError("the connection closed in the middle of an answer")
        if not self._response.isclosed() and self._response.read(1):
            raise BadResponse(f"the hub's answer is larger than {_MAX_ANSWER >> 20} MiB")
        return Answer(self.status, self.headers, body)


def body_ended_early() -> ConnectionResetError:
    return ConnectionResetError("the connection closed in the middle of the body")


def raise_error(answer: Answer, url: str) -> None:
    """Raises the error for an answer with a status from 300 on."""
    if answer.status < 400:
        target = answer.headers.get("Location", "somewhere else")
        raise BadResponse(
            f"{url} sends to {without_secrets(target)}: use that address", status=answer.status
        )
    code: str | None = None
    message = f"the hub answered {answer.status} {http.client.responses.get(answer.status, '')}"
    try:
        sent = json.loads(answer.body)["error"]
        code, message = str(sent["code"]), str(sent["message"])
    except (ValueError, KeyError, TypeError):
        pass  # a proxy's page or the answer to a HEAD: only the status is known
    error = error_of(code, message.strip(), answer.status)
    seconds = answer.headers.get("Retry-After", "")
    if seconds.isascii() and seconds.isdecimal() and len(seconds) < 6:
        error.retry_after_s = float(seconds)
    raise error


def without_secrets(url: str) -> str:
    """The URL without user, password and query: a signed link has its signature in the query."""
    return re.sub("^([A-Za-z]+://)?[^/]*@", r"\1", re.split("[?#]", url)[0])


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
        return HubUnreachable(f"the hub at {url} did not answer in time")
    return HubUnreachable(f"the connection to {url} broke: {exc or type(exc).__name__}")


def is_reusable(sock: socket.socket | None) -> bool:
    """Whether a kept connection can carry another request: a closed one is readable."""
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)

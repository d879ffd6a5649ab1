"""Answers of a hub as they come off the wire, and what a broken wire looks like."""

import contextlib
import errno
import http.client
import json
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
    """A whole answer, its body in memory."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as exc:
            raise BadResponse(f"the hub sent something that is not JSON: {exc}") from exc


class Reply:
    """An answer whose body is still on the wire."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers

    def read_into(self, out: memoryview) -> None:
        """Fills `out` exactly. ConnectionError when the body ends before that."""
        if self.read_up_to(out) < len(out):
            raise cut_short()

    def read_up_to(self, out: memoryview) -> int:
        """Fills `out`; fewer bytes only if the body ends before that."""
        done = 0
        while done < len(out):
            n = self._response.readinto(out[done:])
            if n <= 0:
                break
            done += n
        return done

    def drain(self) -> None:
        """Reads the end of a body whose bytes have all come, so that the connection is kept."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._response.read(1)

    def whole(self) -> Answer:
        """The rest of the body in memory; for answers that are small by nature."""
        body = self._response.read(_MAX_ANSWER)
        if self._response.length:
            raise ConnectionResetError("the connection closed in the middle of an answer")
        if not self._response.isclosed() and self._response.read(1):
            raise BadResponse(f"the hub's answer is larger than {_MAX_ANSWER >> 20} MiB")
        return Answer(self.status, self.headers, body)


def cut_short() -> ConnectionResetError:
    return ConnectionResetError("the connection closed in the middle of the body")


def refuse(answer: Answer, url: str) -> None:
    """Raises the error that an answer of 300 or more stands for."""
    if answer.status < 400:
        target = answer.headers.get("Location", "somewhere else")
        raise BadResponse(f"{url} sends to {target}: use that address", status=answer.status)
    code: str | None = None
    message = f"the hub answered {answer.status} {http.client.responses.get(answer.status, '')}"
    try:
        said = json.loads(answer.body)["error"]
        code, message = str(said["code"]), str(said["message"])
    except (ValueError, KeyError, TypeError):
        pass  # a proxy's page or the answer to a HEAD: the status must do
    error = error_of(code, message.strip(), answer.status)
    seconds = answer.headers.get("Retry-After", "")
    if seconds.isascii() and seconds.isdecimal() and len(seconds) < 6:
        error.retry_after_s = float(seconds)
    raise error


def is_broken_wire(exc: BaseException) -> bool:
    """Whether the network, and not this machine's disk, is what failed."""
    if isinstance(exc, ConnectionError | TimeoutError | ssl.SSLError | socket.gaierror):
        return True
    if isinstance(exc, http.client.HTTPException):
        return True
    return isinstance(exc, OSError) and exc.errno in _NETWORK_ERRNO


def unreachable(exc: BaseException, url: str) -> HubUnreachable:
    """What to tell a person about a wire that stayed broken."""
    if isinstance(exc, ConnectionRefusedError):
        return HubUnreachable(f"no hub answers at {url}: is `deltahub serve` running there?")
    if isinstance(exc, socket.gaierror):
        return HubUnreachable(f"the host of {url} is not known: check the address")
    if isinstance(exc, ssl.SSLError):
        return HubUnreachable(f"no trusted connection to {url}: {exc}")
    if isinstance(exc, TimeoutError):
        return HubUnreachable(f"the hub at {url} did not answer in time")
    return HubUnreachable(f"the connection to {url} broke: {exc or type(exc).__name__}")


def is_quiet(sock: socket.socket | None) -> bool:
    """Whether a kept connection may carry the next request: nothing to read, so not closed."""
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)

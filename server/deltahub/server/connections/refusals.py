"""Answers that end a connection, for requests that reach no handler."""

import json
import re
from dataclasses import dataclass
from typing import Final

import httptools

from deltahub.server.connections.hosts import host_name

_METHOD: Final = re.compile(rb"[A-Za-z-]{1,32} ")
_TARGET: Final = (
    "the target of a request is a path, as /v1/health, or an http:// URL, with %XX for letters"
    " beyond ASCII"
)
METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"


@dataclass(eq=False)
class Refusal(Exception):
    """Why a request is not handled. status: code and phrase of HTTP."""

    status: str
    code: str
    message: str
    headers: tuple[str, ...] = ()

    def to_bytes(self, request_id: str) -> bytes:
        """The whole answer, after which the connection closes."""
        body = json.dumps({"error": {"code": self.code, "message": self.message}}).encode()
        head = [
            f"HTTP/1.1 {self.status}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            f"x-request-id: {request_id}",
            *self.headers,
        ]
        return "\r\n".join([*head, "", ""]).encode() + body


def bad_request(message: str) -> Refusal:
    return Refusal("400 Bad Request", "invalid_request", message)


def wrong_method(message: str) -> Refusal:
    allow = f"allow: {METHODS}"
    return Refusal("405 Method Not Allowed", "method_not_allowed", message, (allow,))


def wrong_version(version: str) -> Refusal:
    return Refusal(
        "505 HTTP Version Not Supported",
        "invalid_request",
        f"this hub speaks HTTP/1.1 and HTTP/1.0, not HTTP/{version}",
    )


def not_http() -> Refusal:
    return bad_request(
        "this is not HTTP, its headers are too large, or the body before was longer than announced"
    )


def unreadable(error: httptools.HttpParserError, first: bytes) -> Refusal:
    """Return the answer to bytes that the parser refuses, or whose Refusal a callback raised.

    first: the first bytes of the connection; empty after a request.
    """
    if isinstance(error.__context__, Refusal):
        return error.__context__
    if first.startswith(b"PRI * HTTP/2"):
        return wrong_version("2")
    if isinstance(error, httptools.HttpParserInvalidMethodError) and _METHOD.match(first):
        return wrong_method(f"this hub knows the methods {METHODS} only")
    if isinstance(error, httptools.HttpParserInvalidURLError):
        return bad_request(_TARGET)
    return not_http()


def too_slow(head_s: float) -> Refusal:
    return Refusal(
        "408 Request Timeout",
        "request_timeout",
        f"the line and headers of a request took longer than {head_s:g} s; send it again",
    )


def no_room(message: str) -> Refusal:
    return Refusal("503 Service Unavailable", "busy", message, ("retry-after: 1",))


def origin_target(
    method: str, target: bytes, version: str, headers: list[tuple[bytes, bytes]]
) -> bytes:
    """Return the target of a request as path and query; sets Host from an absolute target.

    headers: with names in lower case. Raises Refusal for a request that no handler takes.
    """
    if version not in ("1.0", "1.1"):
        raise wrong_version(version)
    if method == "CONNECT":
        raise wrong_method("this hub is no proxy: CONNECT is not taken")
    if target == b"*":
        raise wrong_method(f"{method} * is not taken: name a path, as /v1/health")
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise bad_request(f"a request has one Host header, not {len(hosts)}")
    if not hosts and version == "1.1":
        raise bad_request("HTTP/1.1 needs a Host header: send the host of the hub's URL")
    if not target.startswith(b"/"):
        target = _without_origin(target, headers)
        hosts = [value for name, value in headers if name == b"host"]
    if hosts and host_name(hosts[0].decode("latin-1")) is None:
        raise bad_request("the Host header is not HOST or HOST:PORT")
    return target


def check_upgrade(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise Refusal for a WebSocket. Another protocol is not offered, and HTTP/1.1 goes on."""
    if any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers):
        raise bad_request("this hub has no WebSockets: send the request without Upgrade")


def _without_origin(target: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    # A request to a proxy names scheme and host in its target, which counts instead of Host.
    scheme, _, rest = target.partition(b"://")
    if scheme.lower() not in (b"http", b"https") or not rest:
        raise bad_request(_TARGET)
    host, slash, path = rest.partition(b"/")
    if not slash:
        host, mark, query = rest.partition(b"?")
        path = mark + query
    headers[:] = [(b"host", host), *(pair for pair in headers if pair[0] != b"host")]
    return b"/" + path

"""The host names by which a hub is reached. A request for another name is refused.

A web page may let its own name point to a hub's address (DNS rebinding). The browser then takes the
hub for the page's own server, and the page reads models that only this machine or network may. The
browser sends the page's name as Host, so that the hub can tell. An IP address cannot point anywhere
else: a Host that is one is always right.
"""

import re
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

ANY: Final = "*"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::[0-9]{0,5})?")
_NAME: Final = re.compile(r"[0-9A-Za-z._-]{1,253}")


def names_in(text: str) -> frozenset[str]:
    """Return host names that are separated by commas. Raises ValueError for a malformed one."""
    names = {name.lower().rstrip(".") for name in map(str.strip, text.split(",")) if name}
    for name in names - {ANY}:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name[:200]!r} is no host name: write hub.example.com, without scheme and port"
            )
    return frozenset(names)


def own_names(named: str, bound: str, *urls: str | None) -> frozenset[str]:
    """Return the names of a hub. named: the setting. bound: the address that it listens on.

    urls: its addresses for clients; None for one that is not set.
    """
    names = {"localhost", bound.lower(), *names_in(named)}
    names |= {urlsplit(url).hostname or "" for url in urls if url is not None}
    if not _is_loopback(bound):
        machine = socket.gethostname().lower()
        short = machine.partition(".")[0]
        names |= {machine, short, f"{short}.local"}
    return frozenset(names)


def host_name(header: str) -> str | None:
    """Return the name or address in a Host header, in lower case; None if it is malformed."""
    match = _HOST.fullmatch(header.strip(" \t"))
    return None if match is None else match[1].lower().strip("[]").rstrip(".")


class OwnHosts:
    """Middleware that refuses requests for a host that is not the hub's."""

    def __init__(
        self, app: ASGIApp, names: frozenset[str], refuse: Callable[[Scope, str], Response]
    ) -> None:
        """refuse: makes the answer for a request, from the sentence."""
        self._app = app
        self._names = names
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # HTTP/1.0 needs no Host, and no browser leaves it out. Of two the parser refuses both.
            header = next((value for name, value in scope["headers"] if name == b"host"), None)
            if header is not None and not self._is_own(header.decode("latin-1")):
                shown = header.decode("ascii", "replace")[:200]
                sentence = (
                    f"this hub is not known as {shown}: use its IP address, or let its operator add"
                    " the name to DELTAHUB_SERVER_HOSTS"
                )
                await self._refuse(scope, sentence)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_own(self, header: str) -> bool:
        name = host_name(header)
        return name is not None and (ANY in self._names or name in self._names or _is_ip(name))


def _is_ip(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(bound: str) -> bool:
    return bound == "localhost" or (_is_ip(bound) and ip_address(bound).is_loopback)

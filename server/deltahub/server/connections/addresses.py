"""Addresses of clients: what counts as one client, and which are proxies that the hub trusts."""

import logging
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

log = logging.getLogger(__name__)

_FORWARDED: Final = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
Network: TypeAlias = IPv4Network | IPv6Network


@lru_cache(maxsize=4096)
def counted_address(host: str) -> str:
    """Return the part of an address that a client cannot choose: of IPv6 the /64 prefix."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        # A client chooses the lower 64 bits freely for each connection.
        return str(IPv6Address(int(address) >> 64 << 64))
    return host


def networks_of(named: str) -> tuple[Network, ...]:
    """Return addresses and networks that are separated by commas. Raises ValueError."""
    return tuple(ip_network(one) for one in filter(None, map(str.strip, named.split(","))))


def with_mapped(named: str) -> str:
    """Return the same addresses and networks, of IPv4 also in the form of dual-stack sockets."""
    found: list[str] = []
    for network in networks_of(named):
        found.append(str(network))
        if isinstance(network, IPv4Network):
            found.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return ",".join(found)


class Proxies:
    """The proxies that the operator named: their connections carry those of many clients."""

    def __init__(self, named: str = "") -> None:
        self._networks = networks_of(named)
        self._has_warned = False

    def has(self, host: str) -> bool:
        """Whether the address is that of a named proxy."""
        if not self._networks:
            return False
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)

    def warn_of_unnamed(self, host: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Log once that a request has headers of a proxy, and is from none that was named."""
        if self._has_warned or all(name not in _FORWARDED for name, _ in headers):
            return
        if not self.has(host):
            self._has_warned = True
            log.warning(
                "X-Forwarded-For and X-Forwarded-Proto from %s count for nothing: if that is your"
                " proxy, name it in DELTAHUB_SERVER_TRUSTED_PROXIES",
                host,
            )

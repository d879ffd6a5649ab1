"""How many connections are open, of all clients and of one address, and which end first.

A connection without a request (silent, or still sending headers) is idle. Where there are too many
connections, an idle one ends for a new one, so that silent connections keep nobody out.
"""

import logging
import time
from collections import Counter
from typing import Final, Protocol

from deltahub.server.connections.addresses import Proxies, counted_address

log = logging.getLogger(__name__)

# While connections are short, an idle one ends after this time, and one address has at most this
# share of what it may have otherwise.
SHORT_PATIENCE_S: Final = 5.0
_SHORT_SHARE: Final = 8
# Time between two lines in the log about the same shortage.
_REPORT_EVERY_S: Final = 10.0


class Connection(Protocol):
    """A connection of a client."""

    def end_idle(self) -> None:
        """Close the connection, which has no request."""


class ConnectionLimits:
    """Counts connections. For the event loop's thread only."""

    def __init__(self, total: int, per_address: int, proxies: Proxies) -> None:
        """total, per_address: most open connections. Named proxies have no limit of their own."""
        self._total = total
        self._per_address = per_address
        self.proxies = proxies
        self._address_of: dict[Connection, str] = {}
        self._n_open: Counter[str] = Counter()
        # Idle connections, of all and by address, and since when; the longest idle come first.
        self._idle: dict[Connection, float] = {}
        self._idle_of: dict[str, dict[Connection, float]] = {}
        self._n_refused = 0
        self._n_ended = 0
        self._reported_at = -_REPORT_EVERY_S

    @property
    def n_open(self) -> int:
        return len(self._address_of)

    @property
    def n_idle(self) -> int:
        """Open connections without a request."""
        return len(self._idle)

    @property
    def total(self) -> int:
        return self._total

    @property
    def is_short(self) -> bool:
        """Whether more than three quarters of all connections are open."""
        return 4 * len(self._address_of) > 3 * self._total

    def open(self, connection: Connection, host: str) -> str | None:
        """Count a new connection, which is idle. Returns a sentence if there is no room for it."""
        address = counted_address(host)
        refusal = None
        self.end_idle_if_short()
        if not self.proxies.has(host):
            most = self._per_address
            if self.is_short:
                most = max(most // _SHORT_SHARE, 1)
            if self._n_open[address] >= most and not self._end_longest_idle(address):
                refusal = (
                    f"your address has {self._n_open[address]} connections with a request, and may"
                    f" have {most} now (DELTAHUB_SERVER_CONNECTIONS_PER_ADDRESS is"
                    f" {self._per_address}): send it again when some have ended"
                )
        if refusal is None and len(self._address_of) >= self._total:
            biggest = max(self._idle_of, key=self._rank, default=None)
            if biggest is None or not self._end_longest_idle(biggest):
                refusal = f"all {self._total} connections of this hub have a request: send it again"
        if refusal is not None:
            if not self._n_open[address]:
                del self._n_open[address]
            self._n_refused += 1
            self._report(host)
            return refusal
        self._address_of[connection] = address
        self._n_open[address] += 1
        self.set_idle(connection)
        if self.is_short:
            self._report(host)
        return None

    def set_idle(self, connection: Connection) -> None:
        """Note that a connection has no request (any more)."""
        address = self._address_of.get(connection)
        if address is not None and connection not in self._idle:
            now = time.monotonic()
            self._idle[connection] = now
            self._idle_of.setdefault(address, {})[connection] = now

    def set_busy(self, connection: Connection) -> None:
        """Note that the headers of a request have come."""
        if self._idle.pop(connection, None) is not None:
            address = self._address_of[connection]
            del self._idle_of[address][connection]
            if not self._idle_of[address]:
                del self._idle_of[address]

    def close(self, connection: Connection) -> None:
        """Note that a connection has ended. Does nothing for one that was refused."""
        self.set_busy(connection)
        address = self._address_of.pop(connection, None)
        if address is not None:
            self._n_open[address] -= 1
            if not self._n_open[address]:
                del self._n_open[address]

    def end_idle_if_short(self) -> None:
        """While connections are short, end those that were idle for SHORT_PATIENCE_S."""
        if not self.is_short:
            return
        latest = time.monotonic() - SHORT_PATIENCE_S
        for connection, since in list(self._idle.items()):
            if since > latest or not self.is_short:
                return
            self._end(connection)

    def _rank(self, address: str) -> tuple[bool, int]:
        # Connections of a named proxy end last, because each may carry any client's request soon.
        return not self.proxies.has(address), len(self._idle_of[address])

    def _end_longest_idle(self, address: str) -> bool:
        connection = next(iter(self._idle_of.get(address, ())), None)
        if connection is not None:
            self._end(connection)
        return connection is not None

    def _end(self, connection: Connection) -> None:
        self._n_ended += 1
        self.close(connection)
        connection.end_idle()

    def _report(self, host: str) -> None:
        now = time.monotonic()
        if now - self._reported_at < _REPORT_EVERY_S:
            return
        self._reported_at = now
        log.warning(
            "connections are short: open=%d of=%d addresses=%d refused=%d idle_ended=%d"
            " latest_from=%s (DELTAHUB_SERVER_MAX_CONNECTIONS, and `ulimit -n`)",
            len(self._address_of), self._total, len(self._n_open), self._n_refused, self._n_ended,
            host,
        )  # fmt: skip
        self._n_refused = self._n_ended = 0

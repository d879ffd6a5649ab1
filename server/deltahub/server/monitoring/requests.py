"""Counts requests by route: how many, with which status, and how long they took."""

from typing import Final

from deltahub.registry.measures import Counts, Durations
from deltahub.server.connections.exchanges import Exchange
from deltahub.server.connections.refusals import METHODS

# A request for names should take milliseconds; a download may take an hour.
BOUNDS_S: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 300.0, 3600.0)
_METHODS: Final = frozenset(METHODS.split(", "))


class RequestCounts:
    """Counts of one server. No label has a name that a user chose."""

    def __init__(self) -> None:
        # By door, route, method and class of status, as 2xx.
        self.requests = Counts()
        # By door and route.
        self.seconds = Durations(BOUNDS_S)
        # By door.
        self.body_bytes = Counts()

    def add(self, exchange: Exchange) -> None:
        """Count a request whose answer has ended."""
        door, route = exchange.door, exchange.route
        method = exchange.method if exchange.method in _METHODS else "other"
        self.requests.add((door, route, method, f"{exchange.status // 100}xx"))
        self.seconds.add((door, route), exchange.seconds)
        self.body_bytes.add((door,), exchange.body_bytes)

"""Answers that clients do not take: how many bytes of them the server holds at once."""

from collections import Counter
from typing import Final, Protocol

from deltahub.server.connections.addresses import counted_address

# Bytes of answers that wait for their clients, of all connections. Downloads are not among them:
# their chunks are bounded by their slots.
MAX_UNSENT_BYTES: Final = 128 << 20


class Sender(Protocol):
    """A connection with bytes that its client has not taken."""

    def abort(self) -> None:
        """Close the connection and drop its bytes."""


class UnsentBytes:
    """Adds up unsent bytes. For the event loop's thread only."""

    def __init__(self) -> None:
        # The connection that waits longest comes first.
        self._held: dict[Sender, tuple[str, int]] = {}
        self._total = 0

    def hold(self, sender: Sender, host: str, n_bytes: int) -> None:
        """Count the unsent bytes of a connection, and make room for them.

        Where all connections have too many, those end of the address that has the most, except for
        this connection.
        """
        self.drop(sender)
        self._total += n_bytes
        self._held[sender] = (counted_address(host), n_bytes)
        while self._total > MAX_UNSENT_BYTES and len(self._held) > 1:
            by_address: Counter[str] = Counter()
            for other, (address, n) in self._held.items():
                by_address[address] += n if other is not sender else 0
            ((most, _),) = by_address.most_common(1)
            found = next(
                other
                for other, (address, _) in self._held.items()
                if address == most and other is not sender
            )
            self.drop(found)
            found.abort()

    def drop(self, sender: Sender) -> None:
        """Forget the bytes of a connection, which were taken or which it lost."""
        _, n_bytes = self._held.pop(sender, ("", 0))
        self._total -= n_bytes

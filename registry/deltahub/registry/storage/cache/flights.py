"""Which ranges of which objects are being fetched, so that no two threads fetch the same."""

from concurrent.futures import Future
from threading import Lock


class Flights:
    """The fetches that run in this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: dict[str, list[tuple[int, int, Future[None]]]] = {}

    def begin(self, key: str, start: int, end: int) -> "Flight | Future[None]":
        """A fetch that the caller must end; or the end of a running one that overlaps it."""
        with self._lock:
            for low, high, done in self._running.get(key, ()):
                if low < end and start < high:
                    return done
            flight = Flight(self, key, (start, end, Future()))
            self._running.setdefault(key, []).append(flight.item)
            return flight

    def end(self, key: str, item: tuple[int, int, "Future[None]"]) -> None:
        with self._lock:
            running = self._running[key]
            running.remove(item)
            if not running:
                del self._running[key]
        item[2].set_result(None)


class Flight:
    """A fetch of this thread, which ends with the context, whether it worked or not."""

    def __init__(self, flights: Flights, key: str, item: tuple[int, int, "Future[None]"]) -> None:
        self.item = item
        self._flights = flights
        self._key = key

    def __enter__(self) -> None:
        return

    def __exit__(self, *exc: object) -> None:
        self._flights.end(self._key, self.item)

"""Writes objects in parts in the place where the hub's objects lie."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from deltahub.registry.storage.base import PartsLost, PartStore, SentPart, Store


class PlacedParts:
    """The PartStore of one place. Each method raises PartsLost once the hub's objects have moved.

    Otherwise an upload would be finished in a place that the hub has left.
    """

    def __init__(
        self, parts: PartStore, written_store: Callable[[], AbstractContextManager[Store]]
    ) -> None:
        """written_store: a context with the hub's current store, which stays current in it."""
        self._parts = parts
        self._written_store = written_store

    def begin(self, key: str) -> str:
        with self._place() as parts:
            return parts.begin(key)

    def send(self, key: str, upload_id: str, number: int, fd: int, size: int) -> SentPart:
        with self._place() as parts:
            return parts.send(key, upload_id, number, fd, size)

    def finish(self, key: str, upload_id: str, parts: Sequence[SentPart]) -> bool:
        with self._place() as place:
            return place.finish(key, upload_id, parts)

    def abort(self, key: str, upload_id: str) -> None:
        with self._place() as parts:
            parts.abort(key, upload_id)

    @contextmanager
    def _place(self) -> Iterator[PartStore]:
        with self._written_store() as store:
            if store.parts() is not self._parts:
                raise PartsLost("the hub's objects have moved since the upload began")
            yield self._parts

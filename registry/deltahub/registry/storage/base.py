"""What every object store promises, and the errors it may raise."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Protocol

Buffer = bytes | bytearray | memoryview


class StoreError(Exception):
    """The root. `code` is stable; the message names the key."""

    code: ClassVar[str] = "store_error"


class ObjectNotFound(StoreError):
    code = "object_not_found"


class ObjectExists(StoreError):
    """A create_only put met an object of that key; the object is whole and durable."""

    code = "object_exists"


class ShortObject(StoreError):
    """The range asked for ends behind the object's end."""

    code = "short_object"


class StoreFull(StoreError):
    """No room (or no quota) left; nothing of the put is visible."""

    code = "store_full"


class StoreUnavailable(StoreError):
    """The store did not do it; trying again later may help."""

    code = "store_unavailable"


class InvalidKey(StoreError):
    """A key that keys.py would not have built."""

    code = "invalid_key"


@dataclass(frozen=True)
class ObjectInfo:
    key: str
    size: int
    modified_at: datetime


class Store(Protocol):
    """A reader sees an object whole or not at all; there is no rename and no append.

    Whatever put, take_file, delete and their like have returned from survives a loss of power.
    All methods may be called from several threads and processes at once.
    """

    def put(self, key: str, chunks: Iterable[Buffer], *, create_only: bool = False) -> None:
        """Write an object; replaces one of that key unless create_only (ObjectExists)."""
        ...

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        """Write small objects by key, for less than a put of each. On an error some may be there;
        each is whole, or is not there."""
        ...

    def take_file(self, key: str, path: Path) -> None:
        """Make an object of a finished, fsynced local file; the file is gone afterwards."""
        ...

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        """Fill all of `out` from byte `start`; ObjectNotFound, ShortObject."""
        ...

    def size(self, key: str) -> int:
        """The object's bytes; ObjectNotFound."""
        ...

    def delete(self, key: str) -> None:
        """Remove it; what is not there is no error: retries are safe."""
        ...

    def delete_together(self, keys: Collection[str]) -> None:
        """Remove many, for less than a delete of each. On an error some may be gone."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key begins with `prefix`, in order of key."""
        ...

"""The interface and guarantees of every object store, and the errors it may raise."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final, Protocol

Buffer = bytes | bytearray | memoryview

# The name of a store's mark, which is no key: see stores/current.py.
MARK: Final = ".deltahub"


class StoreError(Exception):
    """Base class of store errors. `code` is stable; the message names the key.

    place: what holds the objects, for sentences to users.
    """

    code: ClassVar[str] = "store_error"
    place: ClassVar[str] = "disk"


class ObjectNotFound(StoreError):
    code = "object_not_found"


class ShortObject(StoreError):
    """The requested range ends after the object's end."""

    code = "short_object"


class StoreFull(StoreError):
    """The disk is full or the quota is used up. Nothing of the put is visible."""

    code = "store_full"


class StoreUnavailable(StoreError):
    """The store failed. A later attempt may succeed."""

    code = "store_unavailable"


class SpoolBusy(StoreUnavailable):
    """Another connection receives this upload."""

    code = "spool_busy"


class PartsLost(StoreUnavailable):
    """The store lacks parts that were sent, or has others in their place: send all again."""

    code = "parts_lost"


class InvalidKey(StoreError):
    """A key that keys.py does not build."""

    code = "invalid_key"


@dataclass(frozen=True)
class ObjectInfo:
    key: str
    size: int
    modified_at: datetime


@dataclass(frozen=True)
class Unfinished:
    """A put that has begun: its process still works, or died.

    id: the store's own name for it. key: the object that it would become; "" where the store does
    not know. size: bytes that it takes. modified_at: when it last grew.
    """

    id: str
    key: str
    size: int
    modified_at: datetime


@dataclass(frozen=True)
class SentPart:
    """A part that the store has confirmed. etag: its name for these bytes. crc32: as S3 writes it.

    number: from 1 on; an object has the bytes of its parts in this order.
    """

    number: int
    size: int
    etag: str
    crc32: str


class PartStore(Protocol):
    """Writes objects in parts. Any process may go on with an upload that another one has begun.

    A reader sees the object once it is finished, and until then what was there before. All methods
    raise PartsLost if the upload has ended.
    """

    def begin(self, key: str) -> str:
        """The id of a new upload."""
        ...

    def send(self, key: str, upload_id: str, number: int, fd: int, size: int) -> SentPart:
        """Send the first `size` bytes of an open file as a part, in place of an earlier one."""
        ...

    def finish(self, key: str, upload_id: str, parts: Sequence[SentPart]) -> bool:
        """Make the object of these parts, or find it made. PartsLost without one of them.

        Whether the store's checksums prove that the object has these parts. If not, it has their
        size, and the caller reads it.
        """
        ...

    def abort(self, key: str, upload_id: str) -> None:
        """End the upload and delete its parts. It can never be finished after that."""
        ...


class Store(Protocol):
    """An object store. A reader sees an object whole or not at all; no rename, no append.

    The effect of a put, take_file or delete survives a loss of power once the call has returned.
    All methods may be called from several threads and processes at once.
    """

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Write an object. It replaces an object of that key."""
        ...

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        """Write many small objects, faster than by a put of each.

        After an error some of them may exist. Each exists whole or not at all.
        """
        ...

    def take_file(self, key: str, path: Path) -> None:
        """Move a finished, fsynced local file into the store as an object."""
        ...

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        """Fill all of `out` from byte `start`; ObjectNotFound, ShortObject."""
        ...

    def get_cached_into(self, key: str, start: int, out: memoryview) -> None:
        """Like get_into(), but from a copy on this machine where there is one.

        For readers that verify the bytes by their own checksums, and use get_into() and forget()
        where they do not check. What proves that the store has an object uses get_into().
        """
        ...

    def prefetch(self, key: str, start: int, end: int) -> None:
        """A hint: get_cached_into() will read these bytes soon. Returns at once, raises nothing."""
        ...

    def forget(self, key: str) -> None:
        """Drop the copy of an object that get_cached_into() reads."""
        ...

    def size(self, key: str) -> int:
        """The object's size in bytes; ObjectNotFound."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object. A missing object is no error, so that retries are safe."""
        ...

    def delete_together(self, keys: Collection[str]) -> None:
        """Delete many objects, faster than one by one. After an error some may be deleted."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in any order."""
        ...

    def unfinished(self) -> Iterator[Unfinished]:
        """What puts have written that are no objects yet."""
        ...

    def discard_unfinished(self, unfinished: Unfinished) -> bool:
        """Delete what an unfinished put has written, unless it grew or ended: then False.

        If its process still works after all, its put fails, and nothing of it is visible.
        """
        ...

    def parts(self) -> PartStore | None:
        """How to write objects in parts; None if the store is one machine's folder."""
        ...

    def mark(self) -> str | None:
        """What set_mark() wrote, None if nothing did. It is no object, and list() has it not."""
        ...

    def set_mark(self, mark: str) -> None:
        """Write a text that says whose objects these are."""
        ...

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str | None:
        """A URL from which a client without credentials gets bytes [start, end), and no others.

        None if the store has no such links. Nothing is asked: the object may be missing.
        """
        ...

    def close(self) -> None:
        """Give connections and threads back. The store is not used after that."""
        ...


class NoCache:
    """The part of Store that concerns copies on this machine, for a store that makes none."""

    def get_cached_into(self: "Store", key: str, start: int, out: memoryview) -> None:
        self.get_into(key, start, out)

    def prefetch(self, key: str, start: int, end: int) -> None:
        pass

    def forget(self, key: str) -> None:
        pass

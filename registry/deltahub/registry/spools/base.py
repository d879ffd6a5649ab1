"""What an unfinished upload can do, wherever its bytes lie."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from deltahub.registry.db.session import WriteSession
from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.checksums import Hashes


class Claim(Protocol):
    """The right of one connection to complete or drop an upload, until the end of its context."""

    def settle(self, session: WriteSession) -> bool:
        """Forget the unfinished upload, in the transaction that completes or drops the upload.

        False if another connection has the right by now: then change nothing.
        """
        ...

    def discard(self) -> None:
        """Delete what is left of the unfinished upload, after that transaction."""
        ...


class UnfinishedUpload(Claim, Protocol):
    """An upload that this connection receives. `size` bytes are here; new ones last after sync().

    PartsLost from any method: what the hub had is gone, and restart() makes that known.
    """

    size: int

    def append(self, data: Buffer) -> None:
        """Add bytes after the last one; StoreFull."""
        ...

    def sync(self) -> None:
        """Make all bytes last, unless they are the whole upload, which store() follows."""
        ...

    def roll_back(self) -> None:
        """Remove the bytes that came after the last sync()."""
        ...

    def restart(self) -> None:
        """Remove all bytes."""
        ...

    def store(self, sha256: str) -> Hashes:
        """Make the whole upload an object if it has this SHA-256; its hashes in any case.

        If it has not, there may be an object all the same, which the caller deletes.
        """
        ...


class Spool(Protocol):
    """The unfinished uploads of a hub, by the ids of their rows. One connection has one at a time.

    An upload of which no byte came is not in it.
    """

    def size(self, upload_id: str) -> int | None:
        """Bytes that came, perhaps with some that do not last yet; None without any."""
        ...

    def open(self, upload_id: str, total: int) -> AbstractContextManager[UnfinishedUpload]:
        """The upload of `total` bytes, to receive more of it; SpoolBusy."""
        ...

    def locked(self, upload_id: str) -> AbstractContextManager[Claim | None]:
        """A claim of the upload; None while a connection receives it."""
        ...

    def revoke(self, upload_id: str) -> None:
        """Before its object is written otherwise: no connection may make one of what it receives,
        unless it has compared the SHA-256 before.
        """
        ...

    def local_bytes(self, sizes: Iterable[int]) -> int:
        """The room that uploads of these sizes need on this machine's disk."""
        ...

    def close(self) -> None: ...

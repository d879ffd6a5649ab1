"""Copies objects from one store to another, and proves what was written by reading it back.

The bytes are hashed on their way. If they turn out wrong at the end, the put fails, so an object
that the target has under this key stays as it is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from deltahub.registry.failpoints import reached
from deltahub.registry.maintenance.backup.named import NamedObject
from deltahub.registry.maintenance.backup.place import DAMAGED, OBJECTS
from deltahub.registry.maintenance.backup.proofs import Blake3Proof, Proof, pieces
from deltahub.registry.maintenance.backup.snapshot import Entry
from deltahub.registry.storage.base import (
    Buffer,
    ObjectInfo,
    ObjectNotFound,
    ShortObject,
    Store,
    StoreError,
)

_ATTEMPTS: Final = 2


class SourceFault(Exception):
    """An object cannot be copied as it should be. kind: what is wrong with it."""

    def __init__(self, kind: Literal["missing", "damaged", "unreadable"], text: str) -> None:
        super().__init__(text)
        self.kind = kind


class CopyDamaged(Exception):
    """What was written does not come back as it was written."""

    code = "copy_damaged"


def copy_object(
    source: Store,
    source_key: str,
    target: Store,
    target_key: str,
    size: int,
    proof_of: Callable[[], Proof],
) -> str:
    """Copy an object and read the copy back; returns its BLAKE3 in hex.

    SourceFault if the source is not what the proof expects. CopyDamaged if the copy twice does not
    come back as it was written; it is then deleted. StoreError of the target.
    """
    for _ in range(_ATTEMPTS):
        proof = proof_of()
        target.put(target_key, _checked(source, source_key, size, proof))
        reached("backup.object.after_put")
        if digest_in(target, target_key, size, lambda: Blake3Proof(proof.digest)) is not None:  # noqa: B023
            return proof.digest
    target.delete(target_key)
    raise CopyDamaged(f"{target_key} does not come back from its place as it was written")


def digest_in(store: Store, key: str, size: int, proof_of: Callable[[], Proof]) -> str | None:
    """The BLAKE3 of an object in hex; None if it is gone, or not what the proof expects."""
    proof = proof_of()
    try:
        if store.size(key) != size:
            return None
        for piece in pieces(store, key, size):
            proof.update(piece)
    except (ObjectNotFound, ShortObject):
        return None
    return proof.digest if proof.is_right() else None


def _checked(source: Store, key: str, size: int, proof: Proof) -> Iterator[Buffer]:
    try:
        found = source.size(key)
        if found != size:
            raise SourceFault("damaged", f"it has {found} bytes, not {size}")
        for piece in pieces(source, key, size):
            proof.update(piece)
            yield piece
    except ObjectNotFound as exc:
        raise SourceFault("missing", "it is gone") from exc
    except ShortObject as exc:
        raise SourceFault("damaged", "it is cut short") from exc
    except StoreError as exc:
        raise SourceFault("unreadable", str(exc)) from exc
    if not proof.is_right():
        raise SourceFault("damaged", "its bytes have another hash than its row says")


class Listing:
    """Answers which sizes the objects of a store have, by a list of one folder at a time.

    Keys are asked in order, so that the memory is that of one folder's list.
    """

    def __init__(self, store: Store, above: str = "") -> None:
        self._store = store
        self._above = above
        self._folder: str | None = None
        self._found: dict[str, ObjectInfo] = {}

    def size(self, key: str) -> int | None:
        """The object's size; None if the list does not have it, which may be stale."""
        folder = self._above + key.rpartition("/")[0] + "/"
        if folder != self._folder:
            self._found = {item.key: item for item in self._store.list(folder)}
            self._folder = folder
        found = self._found.get(self._above + key)
        return None if found is None else found.size


@dataclass(frozen=True)
class Kept:
    """What became of one object. copied, proved: bytes that were written, and only read.

    fault: what is wrong with the object in the hub, even if the place has a good copy.
    has_second: the hub has a second copy of it that is right, so that nothing is lost.
    """

    entry: Entry
    copied: int = 0
    proved: int = 0
    fault: SourceFault | None = None
    has_second: bool = False


class Copier:
    """Keeps objects of a hub in a place. Safe to share between threads."""

    def __init__(self, source: Store, place: Store) -> None:
        self._source = source
        self._place = place

    def keep(
        self, named: NamedObject, in_hub: int | None, in_place: int | None, trusted: Entry | None
    ) -> Kept:
        """Make sure that the place has this object, proved.

        in_hub, in_place: its size by a list. trusted: its entry in an earlier backup, if that
        backup's proof is enough. Errors as of copy_object(), except SourceFault.
        """
        if in_place == named.size:
            fault = None if in_hub == named.size else self._presence_fault(named)
            kept = self._kept_earlier(named, trusted)
            if kept is not None and fault is not None:
                return replace(kept, fault=fault, has_second=self._has_second(named))
            if kept is not None:
                return kept
        try:
            digest = self._copied(named, named.key)
        except SourceFault as fault:
            return self._copied_from_second(named, fault) or self._salvaged(named, fault)
        return Kept(Entry(named.key, named.size, digest), copied=named.size)

    def _kept_earlier(self, named: NamedObject, trusted: Entry | None) -> Kept | None:
        """The copy of an earlier backup; None if it is not whole."""
        if trusted is not None and (trusted.size, trusted.state) == (named.size, "whole"):
            return Kept(trusted)
        digest = digest_in(self._place, OBJECTS + named.key, named.size, named.proof)
        if digest is None:
            return None
        return Kept(Entry(named.key, named.size, digest), proved=named.size)

    def _copied(self, named: NamedObject, source_key: str) -> str:
        return copy_object(
            self._source, source_key, self._place, OBJECTS + named.key, named.size, named.proof
        )

    def _copied_from_second(self, named: NamedObject, fault: SourceFault) -> Kept | None:
        """Copy the second copy in the object's stead; None if there is none that is right."""
        if named.second is None:
            return None
        try:
            digest = self._copied(named, named.second)
        except SourceFault:
            return None
        entry = Entry(named.key, named.size, digest)
        return Kept(entry, copied=named.size, fault=fault, has_second=True)

    def _has_second(self, named: NamedObject) -> bool:
        if named.second is None:
            return False
        try:
            return digest_in(self._source, named.second, named.size, named.proof) is not None
        except StoreError:
            return False

    def _presence_fault(self, named: NamedObject) -> SourceFault | None:
        try:
            found = self._source.size(named.key)
        except ObjectNotFound:
            return SourceFault("missing", "it is gone")
        except StoreError as exc:
            return SourceFault("unreadable", str(exc))
        if found != named.size:
            return SourceFault("damaged", f"it has {found} bytes, not {named.size}")
        return None

    def _salvaged(self, named: NamedObject, fault: SourceFault) -> Kept:
        """Keep the bytes of a damaged object, because some of its frames may still be read."""
        try:
            size = self._source.size(named.key)
            digest = digest_in(self._source, named.key, size, lambda: Blake3Proof(None))
            if digest is None:
                raise ObjectNotFound(named.key)
            copy_object(
                self._source, named.key, self._place, DAMAGED + digest, size,
                lambda: Blake3Proof(digest),
            )  # fmt: skip
        except (SourceFault, ObjectNotFound):
            return Kept(Entry(named.key, named.size, "", "missing"), fault=fault)
        except StoreError:
            if fault.kind != "unreadable":
                raise
            return Kept(Entry(named.key, named.size, "", "missing"), fault=fault)
        return Kept(Entry(named.key, size, digest, "damaged"), copied=size, fault=fault)

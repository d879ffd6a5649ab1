"""What lies in the place for one backup: a copy of the database, a manifest, and a small record.

The record `snapshot.json` is written last. A snapshot without one was cut short, and is none.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import zstandard

from deltahub.registry.maintenance.backup.place import (
    FORMAT,
    SNAPSHOTS,
    Place,
    PlaceRefused,
    read_small,
)
from deltahub.registry.maintenance.backup.proofs import pieces
from deltahub.registry.storage.base import Buffer, ObjectInfo, ObjectNotFound, Store

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

RECORD: Final = "snapshot.json"
MANIFEST: Final = "manifest.zst"
_LEVEL: Final = 3
_BUFFER_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"\d{4}-\d\d-\d\dt\d\d-\d\d-\d\dz")
_NAME_FORMAT: Final = "%Y-%m-%dt%H-%M-%Sz"

State = Literal["whole", "damaged", "missing"]


class SnapshotDamaged(Exception):
    """A file of a snapshot is not the one that was written."""

    code = "snapshot_damaged"


class SnapshotNotFound(Exception):
    code = "snapshot_not_found"


@dataclass(frozen=True)
class Entry:
    """An object of a snapshot. blake3: of its bytes in the place, in hex; "" if it is missing.

    A whole object lies at `objects/KEY`; one that was damaged in the hub at `damaged/BLAKE3`.
    """

    key: str
    size: int
    blake3: str
    state: State = "whole"

    def line(self) -> bytes:
        row = {"key": self.key, "size": self.size, "blake3": self.blake3}
        if self.state != "whole":
            row["state"] = self.state
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True)
class Part:
    """A file of a snapshot, compressed by zstd. size, sha256: of the compressed bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Finding:
    """What a backup could not copy whole. files: the affected ones, at most MAX_FILES of n_files.

    code: object_missing, object_damaged, object_unreadable or database_damaged.
    """

    code: str
    target: str
    text: str
    files: tuple[str, ...] = ()
    n_files: int = 0


@dataclass(frozen=True)
class Snapshot:
    """The record of a backup. database.name ends with .sqlite3.zst or .pg_dump.zst."""

    name: str
    hub: str
    taken_at: str
    release: str
    schema: str
    database: Part
    manifest: Part
    n_objects: int
    n_bytes: int
    findings: tuple[Finding, ...] = field(default=())

    def as_json(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode() + b"\n"

    def key(self, part: Part) -> str:
        return key_of(self.name, part.name)


def name_of(moment: datetime) -> str:
    return moment.strftime(_NAME_FORMAT)


def key_of(snapshot: str, file: str) -> str:
    return f"{SNAPSHOTS}{snapshot}/{file}"


def names_in(store: Store) -> dict[str, list[ObjectInfo]]:
    """Name -> files of all snapshots, cut short ones too, the oldest first."""
    found: dict[str, list[ObjectInfo]] = {}
    for item in store.list(SNAPSHOTS):
        name = item.key.removeprefix(SNAPSHOTS).partition("/")[0]
        if _NAME.fullmatch(name):
            found.setdefault(name, []).append(item)
    return dict(sorted(found.items()))


def is_finished(store: Store, name: str) -> bool:
    try:
        store.size(key_of(name, RECORD))
    except ObjectNotFound:
        return False
    return True


def finished(place: Place) -> list[str]:
    """The names of all whole snapshots, the oldest first."""
    return [name for name in names_in(place.store) if is_finished(place.store, name)]


def load(place: Place, name: str | None = None) -> Snapshot:
    """A snapshot of this place, the newest one by default; SnapshotNotFound, SnapshotDamaged."""
    if name is None:
        names = finished(place)
        if not names:
            raise SnapshotNotFound(f"{place.name} holds no finished backup")
        name = names[-1]
    elif not _NAME.fullmatch(name):
        raise SnapshotNotFound(f"{name!r} is no name of a snapshot, such as 2026-01-31t04-05-06z")
    try:
        data = read_small(place.store, key_of(name, RECORD))
    except ObjectNotFound:
        raise SnapshotNotFound(
            f"{place.name} has no finished snapshot {name}: `deltahub backup list` shows them"
        ) from None
    try:
        return _parse(json.loads(data), name)
    except (ValueError, KeyError, TypeError) as exc:
        raise SnapshotDamaged(f"{RECORD} of snapshot {name} is damaged: {exc}") from exc


def put_compressed(store: Store, key: str, path: Path) -> Part:
    """Compress a file into the store, and read it back; SnapshotDamaged if it comes back other."""
    digest, size = hashlib.sha256(), 0

    def chunks() -> Iterator[Buffer]:
        nonlocal size
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        with path.open("rb") as file:
            for chunk in compressor.read_to_iter(file, size=path.stat().st_size):
                digest.update(chunk)
                size += len(chunk)
                yield chunk

    store.put(key, chunks())
    part = Part(key.rpartition("/")[2], size, digest.hexdigest())
    check_part(store, key, part)
    return part


def check_part(store: Store, key: str, part: Part) -> None:
    """SnapshotDamaged unless the file in the store is the one that was written."""
    digest = hashlib.sha256()
    try:
        if store.size(key) != part.size:
            raise SnapshotDamaged(f"{key} has another size than it was written with")
        for piece in pieces(store, key, part.size):
            digest.update(piece)
    except ObjectNotFound:
        raise SnapshotDamaged(f"{key} is gone") from None
    if digest.hexdigest() != part.sha256:
        raise SnapshotDamaged(f"{key} has another SHA-256 than it was written with")


def decompressed(store: Store, key: str, part: Part) -> Iterator[bytes]:
    """The decompressed bytes of a file, once its SHA-256 was compared; SnapshotDamaged."""
    check_part(store, key, part)
    decompressor = zstandard.ZstdDecompressor()
    try:
        file = io.BufferedReader(_Reader(store, key, part.size), _BUFFER_BYTES)
        yield from decompressor.read_to_iter(file)
    except zstandard.ZstdError as exc:
        raise SnapshotDamaged(f"{key} cannot be decompressed: {exc}") from exc


def entries(place: Place, snapshot: Snapshot) -> Iterator[Entry]:
    """The manifest, in order of keys; SnapshotDamaged."""
    key = snapshot.key(snapshot.manifest)
    rest = b""
    for chunk in decompressed(place.store, key, snapshot.manifest):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from map(_entry, lines)
    if rest:
        raise SnapshotDamaged(f"{key} ends within a line")


class _Reader(io.RawIOBase):
    """An object of a store as a file."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._left = size
        self._start = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer).cast("B")
        n = min(view.nbytes, self._left)
        self._store.get_into(self._key, self._start, view[:n])
        self._start += n
        self._left -= n
        return n


def _entry(line: bytes) -> Entry:
    try:
        return Entry(**json.loads(line))
    except (ValueError, TypeError) as exc:
        raise SnapshotDamaged(f"a line of a manifest is damaged: {line[:80]!r}") from exc


def _parse(record: dict[str, Any], name: str) -> Snapshot:
    if record.pop("format") != FORMAT:
        raise PlaceRefused(f"snapshot {name} has a format that this release does not read")
    database, manifest = Part(**record.pop("database")), Part(**record.pop("manifest"))
    found = tuple(
        Finding(**{**each, "files": tuple(each["files"])}) for each in record.pop("findings")
    )
    snapshot = Snapshot(**record, database=database, manifest=manifest, findings=found)
    if snapshot.name != name:
        raise ValueError(f"it is of snapshot {snapshot.name}")
    return snapshot

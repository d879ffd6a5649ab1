"""Xorbs and shards, as a Hugging Face client makes them for an upload by Xet.

This is an encoder of its own, so that tests can send what real clients never send.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import lz4.frame
import numpy as np

from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import find_repository
from deltahub.registry.db.models import Repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.xet.epochs import place_of
from deltahub.registry.xet.hashes import (
    Merkle,
    chunk_hash,
    from_text,
    range_hash,
    to_text,
    xorb_hash,
)
from deltahub.registry.xet.receive_shard import Progress, accept_shard
from deltahub.registry.xet.receive_xorb import receive_xorb
from support.registry.opened import caller

TAG = b"HFRepoMetaData\0" + bytes.fromhex("556967456a7b815783a5bdd95ccdd14aa9")
MARK = b"\xff" * 32 + bytes(16)
HAS_PROOFS, HAS_SHA256 = 1 << 31, 1 << 30


def pack_chunk(data: bytes, scheme: int = 0) -> bytes:
    body = data
    if scheme == 2:
        raw = np.frombuffer(data, np.uint8)
        body = b"".join(raw[group::4].tobytes() for group in range(4))
    if scheme:
        body = lz4.frame.compress(body)
    size, stored = len(data).to_bytes(3, "little"), len(body).to_bytes(3, "little")
    return b"\0" + stored + bytes([scheme]) + size + body


@dataclass(frozen=True)
class XorbOf:
    """A xorb of these chunks."""

    chunks: Sequence[bytes]
    scheme: int = 0

    @property
    def body(self) -> bytes:
        return b"".join(pack_chunk(chunk, self.scheme) for chunk in self.chunks)

    @property
    def hash(self) -> bytes:
        return xorb_hash([(chunk_hash(chunk), len(chunk)) for chunk in self.chunks])

    @property
    def name(self) -> str:
        return to_text(self.hash)


@dataclass(frozen=True)
class TermOf:
    """Chunks [first, end) of a xorb, as a term of a file."""

    xorb: XorbOf
    first: int = 0
    end: int | None = None

    @property
    def chunks(self) -> Sequence[bytes]:
        return self.xorb.chunks[self.first : self.end]

    def record(self) -> bytes:
        end = len(self.xorb.chunks) if self.end is None else self.end
        size = sum(map(len, self.chunks))
        return struct.pack("<32sIIII", self.xorb.hash, 0, size, self.first, end)

    def proof(self) -> bytes:
        return range_hash(b"".join(map(chunk_hash, self.chunks))) + bytes(16)


@dataclass(frozen=True)
class FileOf:
    """A file of these terms. Fields that are set override the true values."""

    terms: Sequence[TermOf]
    sha256: str | None = None
    hash: bytes | None = None
    proofs: Sequence[bytes] | None = None
    is_named: bool = True

    @property
    def data(self) -> bytes:
        return b"".join(chunk for term in self.terms for chunk in term.chunks)

    @property
    def digest(self) -> str:
        return self.sha256 or sha256(self.data).hexdigest()

    def records(self) -> bytes:
        tree = Merkle()
        tree.update((chunk_hash(chunk), len(chunk)) for term in self.terms for chunk in term.chunks)
        proofs = [term.proof() for term in self.terms] if self.proofs is None else self.proofs
        flags = (HAS_PROOFS if proofs else 0) | (HAS_SHA256 if self.is_named else 0)
        opening = struct.pack("<32sIIQ", self.hash or tree.file_hash(), flags, len(self.terms), 0)
        parts = [opening, *(term.record() for term in self.terms), *proofs]
        if self.is_named:
            parts.append(from_text(self.digest) + bytes(16))
        return b"".join(parts)


@dataclass(frozen=True)
class ShardOf:
    """A shard of these files."""

    files: Sequence[FileOf]
    xorbs: Sequence[XorbOf] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        parts = [TAG + struct.pack("<QQ", 2, 0), *(file.records() for file in self.files), MARK]
        for xorb in self.xorbs:
            n_bytes = sum(map(len, xorb.chunks))
            parts.append(
                struct.pack("<32sIIII", xorb.hash, 0, len(xorb.chunks), n_bytes, len(xorb.body))
            )
            start = 0
            for chunk in xorb.chunks:
                parts.append(struct.pack("<32sIIII", chunk_hash(chunk), start, len(chunk), 0, 0))
                start += len(chunk)
        return b"".join([*parts, MARK])


def cut(data: bytes, chunk_bytes: int = 10_000) -> list[bytes]:
    """The data in chunks."""
    return [data[i : i + chunk_bytes] for i in range(0, len(data), chunk_bytes)]


def send_xorb(reg: Registry, name: str, xorb: XorbOf, sender: Caller | None = None) -> bool:
    """Send the xorb, by default as the repository's owner; whether it was new."""
    sender = sender or caller(reg, name.partition("/")[0])
    repository = repository_row(reg, name)
    body = xorb.body
    blocks = [body[i : i + 7000] for i in range(0, len(body), 7000)]
    return receive_xorb(reg, sender, repository.id, xorb.hash, blocks)


def send_shard(
    reg: Registry, who: Caller, name: str, files: Sequence[FileOf], body: bytes | None = None
) -> Progress:
    """Send a shard; returns its landed files."""
    place = place_of(repository_row(reg, name))
    path = reg.scratch / "a-shard"
    path.write_bytes(ShardOf(files).body if body is None else body)
    progress = Progress()
    try:
        accept_shard(reg, FileReader(reg), who, place, path, progress)
    finally:
        path.unlink()
    return progress


def repository_row(reg: Registry, name: str) -> Repository:
    with reg.db.read() as session:
        found = find_repository(session, name)
    assert found is not None
    return found

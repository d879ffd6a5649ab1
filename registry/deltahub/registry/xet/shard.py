"""Shards: lists of the chunks of xorbs that make up files. Header and records have 48 bytes each.

A shard has a header; for each file a record, its terms, a verification hash for each term, and its
SHA-256; a bookend; for each xorb a record and the records of its chunks; a bookend. An index may
follow, which the hub does not read. Format: docs/xet.md.
"""

import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np

from deltahub.registry import cancellation
from deltahub.registry.db.models import utc_now
from deltahub.registry.errors import InvalidRequest, LimitExceeded, SizeMismatch
from deltahub.registry.xet.chunks import MAX_CHUNK_BYTES
from deltahub.registry.xet.hashes import to_text
from deltahub.registry.xet.xorb import MAX_CHUNKS, XorbIndex

# Twice the size at which clients begin a new shard, 64 MiB.
MAX_SHARD_BYTES: Final = 128 << 20

_TAG: Final = b"HFRepoMetaData\x00" + bytes.fromhex("556967456a7b815783a5bdd95ccdd14aa9")
_VERSION: Final = 2
_HEADER: Final = struct.Struct("<32sQQ")
_RECORD: Final = struct.Struct("<32sIIII")
_BOOKEND: Final = b"\xff" * 32
_HAS_VERIFICATIONS: Final = 1 << 31
_HAS_SHA256: Final = 1 << 30
_CHUNK_RECORD: Final = np.dtype(
    [("hash", "V32"), ("start", "<u4"), ("size", "<u4"), ("unused", "<u8")]
)
_TERM_RECORD: Final = np.dtype([("xorb", "V36"), ("size", "<u4"), ("chunks", "V8")])
_FOOTER: Final = struct.Struct("<9Q32s2Q6Q4Q")


@dataclass(frozen=True, slots=True)
class Term:
    """Chunks [first, end) of a xorb, `size` bytes. verification: their range_hash, if sent."""

    xorb: bytes
    first: int
    end: int
    size: int
    verification: bytes | None


@dataclass(frozen=True)
class ShardFile:
    """A file of `size` bytes: its Xet hash, its SHA-256 in hex, its terms."""

    hash: bytes
    sha256: str
    size: int
    n_terms: int
    _terms: memoryview
    _verifications: memoryview | None

    def terms(self) -> Iterator[Term]:
        """The terms in order; InvalidRequest for an impossible term."""
        for i in range(self.n_terms):
            offset = i * _RECORD.size
            xorb, _, size, first, end = _RECORD.unpack_from(self._terms, offset)
            if not first < end <= MAX_CHUNKS or not 0 < size <= (end - first) * MAX_CHUNK_BYTES:
                raise InvalidRequest(
                    f"a term of file {to_text(self.hash)} takes {size} bytes of chunks {first} to"
                    f" {end}, which no xorb has"
                )
            verification = (
                None
                if self._verifications is None
                else bytes(self._verifications[offset : offset + 32])
            )
            yield Term(xorb, first, end, size, verification)


class Shard:
    """A shard in a buffer. files: each SHA-256 once, in the shard's order.

    InvalidRequest, LimitExceeded if the bytes are no valid shard, or name more than max_files
    files, repeated ones included.
    """

    def __init__(self, data: memoryview, max_files: int) -> None:
        if len(data) > MAX_SHARD_BYTES:
            raise LimitExceeded(f"a shard has at most {MAX_SHARD_BYTES} bytes, not {len(data)}")
        if len(data) < _HEADER.size:
            raise InvalidRequest("the shard ends within its header")
        tag, version, footer_bytes = _HEADER.unpack_from(data)
        if tag != _TAG:
            raise InvalidRequest("the body is no shard")
        if version != _VERSION:
            raise InvalidRequest(f"the shard has version {version}; this hub knows {_VERSION}")
        self._data = data
        self.files: list[ShardFile] = []
        end = self._check_xorbs(self._read_files(max_files))
        if footer_bytes == 0 and end != len(data):
            raise InvalidRequest("bytes follow the shard's end")

    def _read_files(self, max_files: int) -> int:
        """Read the file section; returns its end."""
        sizes: dict[str, int] = {}
        n_records, offset = 0, _HEADER.size
        while True:
            cancellation.check()
            digest, flags, n_terms, _, _ = self._record(offset)
            offset += _RECORD.size
            if digest == _BOOKEND:
                return offset
            n_records += 1
            if n_records > max_files:
                raise LimitExceeded(
                    f"a shard may name {max_files} files, and this one names more: upload the"
                    " folder in parts"
                )
            if flags & ~(_HAS_VERIFICATIONS | _HAS_SHA256):
                raise InvalidRequest(f"the shard's file has flags {flags:#x}, which mean nothing")
            terms, offset = self._records(offset, n_terms)
            verifications = None
            if flags & _HAS_VERIFICATIONS:
                verifications, offset = self._records(offset, n_terms)
            if not flags & _HAS_SHA256:
                raise InvalidRequest(
                    f"the shard does not say the SHA-256 of file {to_text(digest)}; this hub needs"
                    " it"
                )
            record, offset = self._records(offset, 1)
            sha256 = to_text(bytes(record[:32]))
            size = int(np.frombuffer(terms, _TERM_RECORD, n_terms)["size"].sum(dtype=np.int64))
            if sizes.setdefault(sha256, size) != size:
                raise SizeMismatch(
                    f"the shard gives the file {sha256} {sizes[sha256]} bytes, and again {size}"
                )
            if len(sizes) > len(self.files):
                self.files.append(ShardFile(digest, sha256, size, n_terms, terms, verifications))

    def _check_xorbs(self, offset: int) -> int:
        """The end of the xorb section, whose content the hub has in its own indexes."""
        while True:
            cancellation.check()
            digest, _, n_chunks, _, _ = self._record(offset)
            offset += _RECORD.size
            if digest == _BOOKEND:
                return offset
            if n_chunks > MAX_CHUNKS:
                raise InvalidRequest(f"the shard has a xorb of {n_chunks} chunks: {MAX_CHUNKS} do")
            _, offset = self._records(offset, n_chunks)

    def _record(self, offset: int) -> tuple[bytes, int, int, int, int]:
        record, _ = self._records(offset, 1)
        digest, first, second, third, fourth = _RECORD.unpack(record)
        return digest, first, second, third, fourth

    def _records(self, offset: int, n: int) -> tuple[memoryview, int]:
        """n records from `offset`, and their end."""
        end = offset + n * _RECORD.size
        if end > len(self._data):
            raise InvalidRequest("the shard is cut short")
        return self._data[offset:end], end


def response_bytes(n_chunks: Collection[int]) -> int:
    """Bytes of a response_shard of xorbs with these numbers of chunks."""
    n_records = 2 + len(n_chunks) + sum(n_chunks)
    return _HEADER.size + n_records * _RECORD.size + _FOOTER.size


def response_shard(xorbs: Iterable[tuple[bytes, XorbIndex]], ttl: timedelta) -> Iterator[bytes]:
    """A shard without files, for a client. Yields a piece for each xorb.

    xorbs: (hash, chunks). The shard has the footer that clients need. It has no key over the
    chunks' hashes and no lookup tables, because clients make those. ttl: how long it may be used.
    """
    begin = _HEADER.size
    xorbs_at = end = begin + _RECORD.size
    yield _HEADER.pack(_TAG, _VERSION, _FOOTER.size) + _RECORD.pack(_BOOKEND, 0, 0, 0, 0)
    for digest, index in xorbs:
        size = index.size
        chunks = index.columns()
        records = np.zeros(index.n_chunks, _CHUNK_RECORD)
        records["hash"], records["size"] = chunks["hash"], chunks["size"]
        records["start"][1:] = np.cumsum(chunks["size"][:-1])
        piece = _RECORD.pack(digest, 0, index.n_chunks, size, size) + records.tobytes()
        end += len(piece)
        yield piece
    end += _RECORD.size
    tables = (end, 0) * 3
    now = int(utc_now().timestamp())
    times = now, now + int(ttl.total_seconds())
    footer = _FOOTER.pack(1, begin, xorbs_at, *tables, bytes(32), *times, *(0,) * 9, end)
    yield _RECORD.pack(_BOOKEND, 0, 0, 0, 0) + footer

"""Deduplication queries: a client learns xorbs of files with this first chunk that it may read."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import Engine, event

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.commit import commit
from deltahub.registry.catalog.operations import CopyFile
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.errors import Forbidden, Unavailable, UploadNotFound
from deltahub.registry.xet.chunks import MAX_CHUNK_BYTES
from deltahub.registry.xet.epochs import place_of
from deltahub.registry.xet.hashes import chunk_hash
from deltahub.registry.xet.known_chunks import known_chunks
from deltahub.registry.xet.receive_xorb import has_xorb
from deltahub.registry.xet.shard import Shard
from deltahub.registry.xet.sources import UnknownXorb
from support.registry.collecting import collect
from support.registry.opened import caller, ensure_repository, opened_registry
from support.registry.xet import (
    MARK,
    FileOf,
    TermOf,
    XorbOf,
    cut,
    repository_row,
    send_shard,
    send_xorb,
)
from support.registry.xet_uploads import FILE, ONE, TWO, commit_file, let_xorbs_expire, send_all

HEAD = chunk_hash(ONE.chunks[0])


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    who = caller(reg, "ann")
    ensure_repository(reg, who, "ann/m")
    return who


def listed_chunks(
    reg: Registry, who: Caller, name: str, digest: bytes = HEAD
) -> dict[bytes, list[bytes]]:
    """Xorb -> chunks, from the response shard."""
    found = known_chunks(reg, who, place_of(repository_row(reg, name)), digest)
    if found is None:
        return {}
    answer = b"".join(found.pieces())
    assert len(answer) == found.size
    assert Shard(memoryview(answer), 0).files == []
    footer = struct.unpack("<9Q32s12Q", answer[-200:])
    version, files_at, xorbs_at, *tables = footer[:9]
    end = len(answer) - 200
    assert (version, files_at, xorbs_at, footer[-1]) == (1, 48, 96, end)
    assert tables == [end, 0] * 3
    assert footer[9] == bytes(32)
    assert footer[11] - footer[10] == 3600
    xorbs: dict[bytes, list[bytes]] = {}
    place = xorbs_at
    while answer[place : place + 48] != MARK:
        xorb, _, n_chunks, size, _ = struct.unpack_from("<32s4I", answer, place)
        start = 0
        for i in range(n_chunks):
            place += 48
            chunk, where, n_bytes, unused = struct.unpack_from("<32s2IQ", answer, place)
            assert (where, unused) == (start, 0), i
            assert n_bytes <= MAX_CHUNK_BYTES
            start += n_bytes
            xorbs.setdefault(xorb, []).append(chunk)
        assert start == size
        place += 48
    assert place + 48 == end
    return xorbs


@contextmanager
def statements_collected(statements: list[str]) -> Iterator[None]:
    """Collects the SQL statements."""

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def chunks_of(xorb: XorbOf, end: int | None = None) -> list[bytes]:
    return [chunk_hash(chunk) for chunk in xorb.chunks[:end]]


def test_all_chunks_of_the_files_xorbs_are_told(reg: Registry, ann: Caller) -> None:
    assert listed_chunks(reg, ann, "ann/m") == {}
    send_all(reg, ann, "ann/m", FILE)
    expected = {ONE.hash: chunks_of(ONE), TWO.hash: chunks_of(TWO)}
    # A file in no revision yet is not listed.
    assert listed_chunks(reg, ann, "ann/m") == {}
    commit_file(reg, ann, "ann/m", FILE)
    assert listed_chunks(reg, ann, "ann/m") == expected
    # Only the first chunk of a file finds it.
    for other in (chunk_hash(ONE.chunks[1]), chunk_hash(TWO.chunks[2]), bytes(32)):
        assert listed_chunks(reg, ann, "ann/m", other) == {}


def test_of_xorbs_that_are_gone_what_the_file_has_from_their_begin_on_is_told(
    reg: Registry, ann: Caller
) -> None:
    file = FileOf([TermOf(ONE, 0, 4), TermOf(TWO, 2, 7), TermOf(ONE, 3, 6), TermOf(ONE, 8)])
    send_all(reg, ann, "ann/m", file)
    commit_file(reg, ann, "ann/m", file)
    let_xorbs_expire(reg)
    assert listed_chunks(reg, ann, "ann/m") == {ONE.hash: chunks_of(ONE, 6)}
    # The response is enough to send another file that uses the xorb.
    new = XorbOf(cut(Random(5).randbytes(30_000)))
    send_xorb(reg, "ann/m", new)
    changed = FileOf([TermOf(ONE, 0, 2), TermOf(new), TermOf(ONE, 3, 6)])
    send_shard(reg, ann, "ann/m", [changed])
    commit_file(reg, ann, "ann/m", changed, "b.bin")
    # The newest file with this first chunk is listed.
    assert listed_chunks(reg, ann, "ann/m") == {
        ONE.hash: chunks_of(ONE, 2),
        new.hash: chunks_of(new),
    }


def test_terms_that_overlap_are_not_all_read(reg: Registry, ann: Caller) -> None:
    """An attacker's file may have 4096 rows of 74 KB each for the 8192 chunks of one xorb."""
    terms = [TermOf(ONE, 0, end) for end in range(1, 7)]
    file = FileOf(terms + [TermOf(ONE, 2, 9)] * 4)  # large enough for all rows
    send_all(reg, ann, "ann/m", file)
    commit_file(reg, ann, "ann/m", file)
    let_xorbs_expire(reg)
    read: list[str] = []
    with statements_collected(read):
        assert listed_chunks(reg, ann, "ann/m") == {ONE.hash: chunks_of(ONE)}
    assert sum("xet_ranges.chunks" in statement for statement in read) == 2


def test_an_answer_is_cut_where_chunks_go_away_while_it_is_read(reg: Registry, ann: Caller) -> None:
    send_all(reg, ann, "ann/m", FILE)
    commit_file(reg, ann, "ann/m", FILE)
    answer = known_chunks(reg, ann, place_of(repository_row(reg, "ann/m")), HEAD)
    assert answer is not None
    let_xorbs_expire(reg)
    with pytest.raises(Unavailable, match="ask again"):
        list(answer.pieces())
    # After the xorb is deleted, only the file's own chunks are listed.
    assert listed_chunks(reg, ann, "ann/m") == {ONE.hash: chunks_of(ONE)}


def test_who_may_not_read_a_file_is_not_told_of_it(reg: Registry, ann: Caller) -> None:
    bob = caller(reg, "bob")
    ensure_repository(reg, bob, "bob/m")
    ensure_repository(reg, ann, "ann/secret", private=True)
    send_all(reg, ann, "ann/secret", FILE)
    commit_file(reg, ann, "ann/secret", FILE)
    assert listed_chunks(reg, ann, "ann/secret") != {}
    assert listed_chunks(reg, bob, "bob/m") == {}
    # A query for a public repository does not list private chunks.
    assert listed_chunks(reg, ann, "ann/m") == {}
    with pytest.raises(Forbidden):
        listed_chunks(reg, bob, "ann/m")
    # A public file is listed for every writer, by its chunk map, because the xorbs are ann's.
    file = FileOf([TermOf(ONE, 0, 5)])
    send_all(reg, ann, "ann/m", file)
    assert listed_chunks(reg, bob, "bob/m") == {}
    commit_file(reg, ann, "ann/m", file)
    assert listed_chunks(reg, bob, "bob/m") == {ONE.hash: chunks_of(ONE, 5)}
    delete_repository(reg, ann, "ann/m")
    collect(reg)
    assert listed_chunks(reg, bob, "bob/m") == {}


def test_xorbs_that_were_sent_in_private_are_not_told_of_a_public_file(
    reg: Registry, ann: Caller
) -> None:
    """A xorb's hash depends on all its chunks, also on chunks of other files."""
    bob = caller(reg, "bob")
    ensure_repository(reg, bob, "bob/m")
    ensure_repository(reg, ann, "ann/secret", private=True)
    mixed = XorbOf([*ONE.chunks[:5], b"the password is 1234"])
    file = FileOf([TermOf(mixed, 0, 5)])
    send_xorb(reg, "ann/secret", mixed)
    send_shard(reg, ann, "ann/secret", [file, FileOf([TermOf(mixed, 5)])])
    commit_file(reg, ann, "ann/secret", file)
    # Bob has the same file, and learns nothing new.
    own = XorbOf(ONE.chunks[:5])
    send_xorb(reg, "bob/m", own)
    send_shard(reg, bob, "bob/m", [FileOf([TermOf(own)])])
    commit_file(reg, bob, "bob/m", file)
    assert listed_chunks(reg, bob, "bob/m") == {own.hash: chunks_of(own)}
    assert listed_chunks(reg, ann, "ann/m") == {own.hash: chunks_of(own)}
    assert listed_chunks(reg, ann, "ann/secret").keys() == {own.hash, mixed.hash}


def test_what_was_sent_with_a_public_file_and_not_committed_is_nobody_elses(
    reg: Registry, ann: Caller
) -> None:
    """Others may learn the hash of the xorb, but not its uncommitted chunks."""
    bob = caller(reg, "bob")
    ensure_repository(reg, bob, "bob/m")
    mixed = XorbOf([*ONE.chunks[:5], b"not committed, and never will be"])
    file, rest = FileOf([TermOf(mixed, 0, 5)]), FileOf([TermOf(mixed, 5)])
    send_xorb(reg, "ann/m", mixed)
    send_shard(reg, ann, "ann/m", [file, rest])
    commit_file(reg, ann, "ann/m", file)
    assert listed_chunks(reg, bob, "bob/m") == {mixed.hash: chunks_of(mixed, 5)}
    assert listed_chunks(reg, bob, "bob/m", chunk_hash(mixed.chunks[5])) == {}
    assert not has_xorb(reg, repository_row(reg, "bob/m").id, mixed.hash)
    for claimed in (rest, FileOf([TermOf(mixed)]), FileOf([TermOf(mixed, 4)])):
        with pytest.raises(UnknownXorb):
            send_shard(reg, bob, "bob/m", [claimed])
    with pytest.raises(UploadNotFound):
        commit_file(reg, bob, "bob/m", rest)
    with pytest.raises(UploadNotFound):
        commit(reg, bob, "bob/m", "main", [CopyFile("b", rest.digest)], "a copy")

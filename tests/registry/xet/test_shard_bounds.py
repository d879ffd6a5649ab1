"""The work of a shard is bounded before it begins, and repeated files are built once."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, event

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Landing
from deltahub.registry.errors import LimitExceeded, SizeMismatch, StorageFull
from deltahub.registry.storage.disk import Disk
from support.registry.collecting import count
from support.registry.opened import caller, ensure_repository, opened_registry
from support.registry.xet import MARK, TAG, FileOf, TermOf, XorbOf, send_shard, send_xorb
from support.registry.xet_uploads import FILE, ONE, TWO, landed

EMPTY = FileOf([])


class Roomy(Disk):
    free = 1 << 60

    def free_bytes(self, path: Path) -> int:
        return self.free


@pytest.fixture
def disk() -> Roomy:
    return Roomy()


@pytest.fixture
def reg(tmp_path: Path, disk: Roomy) -> Iterator[Registry]:
    with opened_registry(
        tmp_path, disk, max_operations=1000, max_shard_bytes=1_000_000
    ) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    who = caller(reg, "ann")
    ensure_repository(reg, who, "ann/m")
    return who


def shard_of(*records: bytes) -> bytes:
    return b"".join([TAG, struct.pack("<QQ", 2, 0), *records, MARK, MARK])


def test_a_file_that_a_shard_repeats_costs_the_transactions_of_one(
    reg: Registry, ann: Caller
) -> None:
    n_writes = 0

    def look(connection: Connection) -> None:
        nonlocal n_writes
        n_writes += 1

    event.listen(reg.db.write_engine, "commit", look)
    send_shard(reg, ann, "ann/m", [], shard_of(EMPTY.records()))
    once, n_writes = n_writes, 0
    other = FileOf([TermOf(ONE)])
    send_xorb(reg, "ann/m", ONE)
    n_writes = 0
    progress = send_shard(reg, ann, "ann/m", [], shard_of(*[EMPTY.records()] * 999))
    assert n_writes <= once
    assert (progress.done, progress.total) == (0, 0)
    progress = send_shard(reg, ann, "ann/m", [other, other, EMPTY, other])
    assert progress.done == progress.total == len(other.data)
    assert landed(reg, ann, other.digest) == other.data
    assert count(reg, Landing) == 2


def test_a_shard_of_too_many_files_is_refused_before_any_work(reg: Registry, ann: Caller) -> None:
    with pytest.raises(LimitExceeded, match=r"may name 1000 files.* in parts"):
        send_shard(reg, ann, "ann/m", [], shard_of(*[EMPTY.records()] * 1001))
    assert count(reg, Landing) == 0


def test_a_shard_of_too_many_bytes_is_refused_before_any_work(reg: Registry, ann: Caller) -> None:
    send_xorb(reg, "ann/m", ONE)
    files = [FileOf([TermOf(ONE)] * n) for n in range(1, 5)]  # 90,000 bytes each time
    with pytest.raises(LimitExceeded, match=r"may have 1000000 bytes, and these have 1350000"):
        send_shard(reg, ann, "ann/m", [*files, FileOf([TermOf(ONE)] * 5)])
    assert count(reg, Landing) == 0
    send_shard(reg, ann, "ann/m", files)
    assert count(reg, Landing) == 4


def test_a_shard_of_too_many_small_ranges_is_refused_before_any_work(
    reg: Registry, ann: Caller
) -> None:
    tiny = XorbOf([b"x"])
    file = FileOf([TermOf(tiny)] * 50_001)
    with pytest.raises(LimitExceeded, match=r"may consist of 50012 ranges.* lists 50013"):
        send_shard(reg, ann, "ann/m", [file, FileOf([TermOf(tiny)] * 12)])
    assert count(reg, Landing) == 0


def test_a_repeated_file_has_one_size(reg: Registry, ann: Caller) -> None:
    send_xorb(reg, "ann/m", ONE)
    send_xorb(reg, "ann/m", TWO)
    lie = replace(FileOf([TermOf(ONE)]), sha256=FILE.digest)
    with pytest.raises(SizeMismatch, match="bytes, and again 90000"):
        send_shard(reg, ann, "ann/m", [FILE, lie])
    assert count(reg, Landing) == 0


def test_a_file_without_room_is_refused_before_it_is_built(
    reg: Registry, ann: Caller, disk: Roomy
) -> None:
    send_xorb(reg, "ann/m", ONE)
    disk.free = 80_000
    with pytest.raises(StorageFull, match=r"room for 80.0 kB, and this upload has 90.0 kB"):
        send_shard(reg, ann, "ann/m", [FileOf([TermOf(ONE)])])
    assert list(reg.spool.list()) == []

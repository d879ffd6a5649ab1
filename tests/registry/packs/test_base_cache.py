"""The cache of decoded base blocks: what it keeps and evicts, and its limits on the disk."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.registry.packs import base_cache
from deltahub.registry.packs.base_cache import MIN_BLOCK_BYTES, SEGMENT_BYTES, FrameKey, HotBases
from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.disk import Disk

LIMIT = 2 * SEGMENT_BYTES
FRAME: FrameKey = ("pack", 0)
BLOCK = 256 << 10


def block_of(index: int, size: int = BLOCK) -> bytes:
    return np.random.default_rng(index).bytes(size)


def offer(hot: HotBases, blocks: range, size: int = BLOCK, frame: FrameKey = FRAME) -> None:
    data = b"".join(block_of(i, size) for i in blocks)
    hot.offer(frame, blocks.start, [size] * len(blocks), memoryview(data))


def read(
    hot: HotBases, block: int, skip: int = 0, n: int = BLOCK, frame: FrameKey = FRAME
) -> bytes:
    out = bytearray(n)
    return bytes(out[: hot.read_into(frame, block, skip, memoryview(out))])


@pytest.fixture
def hot(tmp_path: Path) -> HotBases:
    return HotBases(Disk(), tmp_path, LIMIT)


def test_what_was_decoded_once_is_not_written(hot: HotBases) -> None:
    offer(hot, range(3))
    assert (hot.kept_bytes, read(hot, 0)) == (0, b"")
    offer(hot, range(1, 3))
    assert hot.kept_bytes == 2 * BLOCK
    assert (read(hot, 0), read(hot, 1)) == (b"", block_of(1))
    offer(hot, range(3))
    offer(hot, range(3))  # nothing is written twice
    assert hot.kept_bytes == 3 * BLOCK
    assert hot.read_bytes == BLOCK


def test_small_blocks_and_other_frames_are_left_out(hot: HotBases) -> None:
    for _ in range(2):
        offer(hot, range(2), MIN_BLOCK_BYTES - 1)
        offer(hot, range(1), frame=("other", 0))
    assert read(hot, 0) == b""
    assert hot.kept_bytes == BLOCK
    assert read(hot, 0, frame=("other", 0)) == block_of(0)


def test_nothing_has_a_name_on_the_disk_and_nothing_stays(tmp_path: Path) -> None:
    def n_open() -> int:
        links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return sum(str(tmp_path) in link for link in links)

    hot = HotBases(Disk(), tmp_path, LIMIT)
    for _ in range(2):
        offer(hot, range(4))
    assert (list(tmp_path.iterdir()), n_open()) == ([], 1)
    del hot
    assert n_open() == 0


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_read_is_what_was_offered(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    hot = HotBases(Disk(), tmp_path_factory.mktemp("hot"), LIMIT)
    n_blocks = 12
    for _ in range(data.draw(st.integers(1, 8))):
        first = data.draw(st.integers(0, n_blocks - 1))
        offer(hot, range(first, data.draw(st.integers(first + 1, n_blocks))), MIN_BLOCK_BYTES)
    whole = b"".join(block_of(i, MIN_BLOCK_BYTES) for i in range(n_blocks))
    for _ in range(10):
        begin = data.draw(st.integers(0, len(whole) - 1))
        n = data.draw(st.integers(1, len(whole) - begin))
        got = read(hot, begin // MIN_BLOCK_BYTES, begin % MIN_BLOCK_BYTES, n)
        assert got == whole[begin : begin + len(got)]


def test_bases_that_do_not_fit_let_others_stay(
    hot: HotBases, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = SEGMENT_BYTES // 4
    for _ in range(2):
        for i in range(12):
            offer(hot, range(i, i + 1), size)
    assert hot.kept_bytes == LIMIT
    assert read(hot, 0, n=size) == block_of(0, size)
    assert read(hot, 7, n=size) == block_of(7, size)
    assert read(hot, 8, n=size) == b""
    monkeypatch.setattr(base_cache, "KEEP_RECENT_S", 0.0)
    read(hot, 0)  # so that the other segment is the least recently used
    offer(hot, range(8, 9), size)
    assert read(hot, 8, n=size) == block_of(8, size)
    assert read(hot, 0, n=size) == block_of(0, size)
    assert read(hot, 7, n=size) == b""
    assert hot.kept_bytes <= LIMIT


class _Broken(Disk):
    """A disk whose writes fail after `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, fd: int, data: Buffer) -> None:
        if self.room < memoryview(data).nbytes:
            super().write(fd, memoryview(data).cast("B")[: self.room])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data)
        self.room -= memoryview(data).nbytes


def test_a_full_disk_ends_it_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hot = HotBases(_Broken(2 * BLOCK + 1000), tmp_path, LIMIT)
    for _ in range(2):
        offer(hot, range(2))
    assert read(hot, 1) == block_of(1)
    for _ in range(3):
        offer(hot, range(2, 4))
    assert (read(hot, 1), read(hot, 2), hot.kept_bytes) == (b"", b"", 0)
    assert caplog.text.count("no longer kept") == 1
    assert "No space left" in caplog.text


def test_the_disk_is_not_filled(hot: HotBases, monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(path: Any) -> NamedTuple:
        return real._replace(free=free)

    real = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", usage)
    free = LIMIT + SEGMENT_BYTES - 1
    for _ in range(2):
        offer(hot, range(1))
    assert hot.kept_bytes == 0
    free += 1
    offer(hot, range(1))
    assert hot.kept_bytes == BLOCK


def test_what_others_take_of_the_disk_is_let_go_of(
    hot: HotBases, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = SEGMENT_BYTES // 4
    for _ in range(2):
        for i in range(8):
            offer(hot, range(i, i + 1), size)
    read(hot, 0)  # so that the second segment is the least recently used
    hot.leave_room()
    assert hot.kept_bytes == LIMIT

    def usage(path: Any) -> NamedTuple:
        return real._replace(free=free)

    real = shutil.disk_usage(".")
    free = LIMIT - 1
    monkeypatch.setattr(shutil, "disk_usage", usage)
    hot.leave_room()
    assert (read(hot, 0), read(hot, 4)) == (block_of(0, size)[:BLOCK], b"")
    assert hot.kept_bytes == SEGMENT_BYTES
    free = 0
    hot.leave_room()
    assert (read(hot, 0), hot.kept_bytes) == (b"", 0)
    free = 2 * LIMIT
    offer(hot, range(1), size)
    assert read(hot, 0) == block_of(0, size)[:BLOCK]


class _Yielding(Disk):
    """A disk that calls other code while a block is written or a file is created."""

    def __init__(self) -> None:
        self.act: Callable[[], None] = lambda: None

    def write(self, fd: int, data: Buffer) -> None:
        super().write(fd, data)
        self.act()

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.act()


@pytest.mark.parametrize("is_ended", [False, True])
def test_what_is_let_go_of_while_it_is_written_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    disk = _Yielding()
    hot = HotBases(disk, tmp_path, LIMIT)
    real = shutil.disk_usage(".")
    offer(hot, range(4))

    def act() -> None:
        if is_ended:
            hot.disable("the test says so")
        else:
            with monkeypatch.context() as patched:
                patched.setattr(shutil, "disk_usage", lambda _: real._replace(free=0))
                hot.leave_room()

    disk.act = act
    offer(hot, range(2))
    offer(hot, range(2, 4))
    assert (read(hot, 0), read(hot, 3), hot.kept_bytes) == (b"", b"", 0)
    disk.act = lambda: None
    offer(hot, range(4))
    assert read(hot, 3) == (b"" if is_ended else block_of(3))


def test_however_much_is_kept_few_files_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = HotBases(Disk(), tmp_path, 1 << 40)
    real = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=1 << 41))
    for _ in range(2):
        for i in range(6):
            offer(hot, range(i, i + 1), SEGMENT_BYTES // 4)
    assert hot.kept_bytes == 6 * SEGMENT_BYTES // 4
    assert len(hot._segments) == 1


@pytest.mark.parametrize("limit", [0, SEGMENT_BYTES - 1])
def test_it_can_be_switched_off(tmp_path: Path, limit: int) -> None:
    hot = HotBases(Disk(), tmp_path, limit)
    for _ in range(3):
        offer(hot, range(2))
    assert (hot.kept_bytes, read(hot, 0)) == (0, b"")

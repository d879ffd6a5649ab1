"""Bases that are kept decoded: read instead of decoded again, never trusted, never in the way."""

import errno
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from deltahub.codecs.frame import FrameView
from deltahub.codecs.ids import tensor_id
from deltahub.registry import Registry, hot_bases
from deltahub.registry.db.models import Frame, Tensor
from deltahub.registry.errors import DataLost
from deltahub.registry.hot_bases import LEAST_BYTES, SEGMENT_BYTES, FrameKey, HotBases
from deltahub.registry.repositories import ensure_repository
from deltahub.registry.restore import Restorer
from deltahub.registry.store.base import Buffer
from deltahub.registry.store.disk import Disk
from deltahub.registry.store.keys import pack_key
from support.client_packs import frames_of, near, send_pack, weights
from support.registry import caller, opened_registry

LIMIT = 2 * SEGMENT_BYTES
FRAME: FrameKey = ("pack", 0)
BLOCK = 256 << 10
COUNT = 900_000
BASE = weights(COUNT)
TUNED = near(BASE)


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
        offer(hot, range(2), LEAST_BYTES - 1)
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
        offer(hot, range(first, data.draw(st.integers(first + 1, n_blocks))), LEAST_BYTES)
    whole = b"".join(block_of(i, LEAST_BYTES) for i in range(n_blocks))
    for _ in range(10):
        begin = data.draw(st.integers(0, len(whole) - 1))
        n = data.draw(st.integers(1, len(whole) - begin))
        got = read(hot, begin // LEAST_BYTES, begin % LEAST_BYTES, n)
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
    monkeypatch.setattr(hot_bases, "FRESH_S", 0.0)
    read(hot, 0)  # so that the other segment is the one that nobody wants
    offer(hot, range(8, 9), size)
    assert read(hot, 8, n=size) == block_of(8, size)
    assert read(hot, 0, n=size) == block_of(0, size)
    assert read(hot, 7, n=size) == b""
    assert hot.kept_bytes <= LIMIT


class _Broken(Disk):
    """A disk that takes `room` bytes."""

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
    read(hot, 0)  # so that the second segment is the one that nobody wants
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
    """A disk that somebody looks at while a block is written, or a file made."""

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
            hot.give_up("the test says so")
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


@pytest.fixture(scope="module")
def reg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A base in frames of several blocks, and a difference from it."""
    with opened_registry(Path(tmp_path_factory.mktemp("hot"))) as reg:
        ann = caller(reg, "ann")
        ensure_repository(reg, ann, "ann/m", private=True)
        frames = frames_of(BASE, codec="neuzip_lossless", max_bytes=4 * BLOCK)
        send_pack(reg, ann, "ann/m", frames)
        send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        yield reg


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Blocks that were decoded: of the base (True), of the difference."""
    found: Counter[bool] = Counter()
    decode_into = FrameView.decode_into

    def counted(view: FrameView, i: int, j: int, *rest: Any) -> None:
        found[view.header.base is None] += j - i
        decode_into(view, i, j, *rest)

    monkeypatch.setattr(FrameView, "decode_into", counted)
    return found


def read_tuned(
    reg: Registry,
    restorer: Restorer,
    first: int = 0,
    end: int = len(TUNED),
    content: bytes = TUNED,
) -> bytes:
    with reg.db.read() as session:
        row = session.scalars(select(Tensor).where(Tensor.hash == tensor_id(content))).one()
    out = bytearray(end - first)
    restorer.read_tensor_into(row.id, first, memoryview(out))
    return bytes(out)


def test_a_base_is_decoded_twice_and_then_read(
    reg: Registry, hot: HotBases, decoded: Counter[bool]
) -> None:
    restorer = Restorer(reg, 0, hot)
    for _ in range(2):
        assert read_tuned(reg, restorer) == TUNED
    assert len(BASE) - LEAST_BYTES <= hot.kept_bytes <= len(BASE)
    kept, before = hot.kept_bytes, hot.read_bytes
    decoded.clear()
    assert read_tuned(reg, restorer) == TUNED
    assert hot.read_bytes - before == kept
    assert decoded[True] <= 1  # a last block may be too small to be kept
    assert decoded[False] > 0
    for first, end in ((0, 1), (BLOCK - 1, BLOCK + 1), (3 * BLOCK - 7, 5 * BLOCK + 3)):
        assert read_tuned(reg, restorer, first, end) == TUNED[first:end]


def read_base(reg: Registry, restorer: Restorer, first: int = 0, end: int = len(BASE)) -> bytes:
    return read_tuned(reg, restorer, first, end, BASE)


def test_who_wants_the_base_itself_gets_what_is_kept(
    reg: Registry, hot: HotBases, decoded: Counter[bool]
) -> None:
    restorer = Restorer(reg, 0, hot)
    for _ in range(3):
        assert read_base(reg, restorer) == BASE
    assert hot.kept_bytes == 0  # nobody needed it for a difference
    for _ in range(2):
        read_tuned(reg, restorer)
    decoded.clear()
    before = hot.read_bytes
    assert read_base(reg, restorer) == BASE
    assert decoded[True] <= 1  # a last block may be too small to be kept
    assert hot.read_bytes - before == hot.kept_bytes
    for first, end in ((0, 1), (BLOCK - 1, BLOCK + 1), (3 * BLOCK - 7, 5 * BLOCK + 3)):
        assert read_base(reg, restorer, first, end) == BASE[first:end]


def test_of_the_base_the_other_blocks_are_decoded(
    reg: Registry, hot: HotBases, decoded: Counter[bool]
) -> None:
    restorer = Restorer(reg, 0, hot)
    for _ in range(2):
        read_tuned(reg, restorer, BLOCK, 2 * BLOCK)
    n_kept = hot.kept_bytes // BLOCK
    assert n_kept >= 1
    n_blocks = -(-len(BASE) // BLOCK)
    decoded.clear()
    assert read_base(reg, restorer) == BASE
    assert decoded[True] == n_blocks - n_kept


@pytest.mark.parametrize("how", ["a bit", "another block", "cut short"])
def test_changed_bytes_of_a_base_are_not_given_out(
    reg: Registry, hot: HotBases, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    restorer = Restorer(reg, 0, hot)
    for _ in range(2):
        read_tuned(reg, restorer)
    _damage(hot, how)
    with caplog.at_level(logging.ERROR):
        assert read_base(reg, restorer) == BASE
    assert "no longer kept" in caplog.text
    assert hot.kept_bytes == 0


def _damage(hot: HotBases, how: str) -> None:
    (segment,) = hot._segments
    if how == "a bit":
        place = 2 * BLOCK + 12345
        (byte,) = os.pread(segment.fd, 1, place)
        os.pwrite(segment.fd, bytes([byte ^ 4]), place)
    elif how == "another block":
        os.pwrite(segment.fd, os.pread(segment.fd, BLOCK, 0), BLOCK)
    else:
        os.truncate(segment.fd, BLOCK + 5)


@pytest.mark.parametrize("how", ["a bit", "another block", "cut short"])
def test_a_disk_that_changes_what_is_kept_changes_nothing_else(
    reg: Registry, hot: HotBases, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    restorer = Restorer(reg, 0, hot)
    for _ in range(2):
        read_tuned(reg, restorer)
    _damage(hot, how)
    with caplog.at_level(logging.ERROR):
        assert read_tuned(reg, restorer) == TUNED
    assert "no longer kept" in caplog.text
    assert hot.kept_bytes == 0
    for _ in range(3):
        assert read_tuned(reg, restorer) == TUNED
    assert hot.kept_bytes == 0


def test_damage_of_what_is_stored_stays_damage(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        ensure_repository(reg, ann, "ann/m", private=True)
        send_pack(reg, ann, "ann/m", frames_of(BASE, codec="neuzip_lossless"))
        send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        hot = HotBases(Disk(), tmp_path, LIMIT)
        restorer = Restorer(reg, 0, hot)
        for _ in range(2):
            assert read_tuned(reg, restorer) == TUNED
        kept = hot.kept_bytes
        with reg.db.read() as session:
            row = session.scalars(select(Tensor).where(Tensor.hash == tensor_id(TUNED))).one()
            frame = session.scalars(select(Frame).where(Frame.tensor_id == row.id)).first()
        assert frame is not None
        key = pack_key(frame.pack_id)
        pack = bytearray(reg.store.size(key))
        reg.store.get_into(key, 0, memoryview(pack))
        pack[frame.offset + frame.length - 1000] ^= 1
        reg.store.put(key, [pack])
        with pytest.raises(DataLost, match="fsck"):
            read_tuned(reg, restorer)
        # The base's copy was not at fault.
        assert hot.kept_bytes == kept > 0

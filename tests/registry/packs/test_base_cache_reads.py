"""Tensor readers use hot bases instead of decoding again, and never trust them."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from deltahub.codecs.frames import FrameView
from deltahub.codecs.ids import tensor_id
from deltahub.registry import Registry
from deltahub.registry.db.models import Frame, Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.packs.base_cache import MIN_BLOCK_BYTES, SEGMENT_BYTES, HotBases
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.keys import pack_key
from support.registry.client_packs import frames_of, near, send_pack, weights
from support.registry.opened import caller, ensure_repository, opened_registry

LIMIT = 2 * SEGMENT_BYTES
BLOCK = 256 << 10
COUNT = 900_000
BASE = weights(COUNT)
TUNED = near(BASE)


@pytest.fixture
def hot(tmp_path: Path) -> HotBases:
    return HotBases(Disk(), tmp_path, LIMIT)


@pytest.fixture(scope="module")
def reg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A base in frames of several blocks, and a delta of it."""
    with opened_registry(Path(tmp_path_factory.mktemp("hot"))) as reg:
        ann = caller(reg, "ann")
        ensure_repository(reg, ann, "ann/m", private=True)
        frames = frames_of(BASE, codec="neuzip_lossless", max_bytes=4 * BLOCK)
        send_pack(reg, ann, "ann/m", frames)
        send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        yield reg


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Number of decoded blocks: of the base (True) and of the delta (False)."""
    found: Counter[bool] = Counter()
    decode_into = FrameView.decode_into

    def counted(view: FrameView, i: int, j: int, *rest: Any) -> None:
        found[view.header.base is None] += j - i
        decode_into(view, i, j, *rest)

    monkeypatch.setattr(FrameView, "decode_into", counted)
    return found


def read_tuned(
    reg: Registry,
    reader: FileReader,
    first: int = 0,
    end: int = len(TUNED),
    content: bytes = TUNED,
) -> bytes:
    with reg.db.read() as session:
        row = session.scalars(select(Tensor).where(Tensor.hash == tensor_id(content))).one()
    out = bytearray(end - first)
    reader.read_tensor_into(row.id, first, memoryview(out))
    return bytes(out)


def test_a_base_is_decoded_twice_and_then_read(
    reg: Registry, hot: HotBases, decoded: Counter[bool]
) -> None:
    reader = FileReader(reg, 0, hot)
    for _ in range(2):
        assert read_tuned(reg, reader) == TUNED
    assert len(BASE) - MIN_BLOCK_BYTES <= hot.kept_bytes <= len(BASE)
    kept, before = hot.kept_bytes, hot.read_bytes
    decoded.clear()
    assert read_tuned(reg, reader) == TUNED
    assert hot.read_bytes - before == kept
    assert decoded[True] <= 1  # a last block may be too small to be kept
    assert decoded[False] > 0
    for first, end in ((0, 1), (BLOCK - 1, BLOCK + 1), (3 * BLOCK - 7, 5 * BLOCK + 3)):
        assert read_tuned(reg, reader, first, end) == TUNED[first:end]


def read_base(reg: Registry, reader: FileReader, first: int = 0, end: int = len(BASE)) -> bytes:
    return read_tuned(reg, reader, first, end, BASE)


def test_who_wants_the_base_itself_gets_what_is_kept(
    reg: Registry, hot: HotBases, decoded: Counter[bool]
) -> None:
    reader = FileReader(reg, 0, hot)
    for _ in range(3):
        assert read_base(reg, reader) == BASE
    assert hot.kept_bytes == 0  # no delta needed it
    for _ in range(2):
        read_tuned(reg, reader)
    decoded.clear()
    before = hot.read_bytes
    assert read_base(reg, reader) == BASE
    assert decoded[True] <= 1  # a last block may be too small to be kept
    assert hot.read_bytes - before == hot.kept_bytes
    for first, end in ((0, 1), (BLOCK - 1, BLOCK + 1), (3 * BLOCK - 7, 5 * BLOCK + 3)):
        assert read_base(reg, reader, first, end) == BASE[first:end]


def test_of_the_base_the_other_blocks_are_decoded(
    reg: Registry, hot: HotBases, decoded: Counter[bool]
) -> None:
    reader = FileReader(reg, 0, hot)
    for _ in range(2):
        read_tuned(reg, reader, BLOCK, 2 * BLOCK)
    n_kept = hot.kept_bytes // BLOCK
    assert n_kept >= 1
    n_blocks = -(-len(BASE) // BLOCK)
    decoded.clear()
    assert read_base(reg, reader) == BASE
    assert decoded[True] == n_blocks - n_kept


@pytest.mark.parametrize("how", ["a bit", "another block", "cut short"])
def test_changed_bytes_of_a_base_are_not_given_out(
    reg: Registry, hot: HotBases, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = FileReader(reg, 0, hot)
    for _ in range(2):
        read_tuned(reg, reader)
    _damage(hot, how)
    with caplog.at_level(logging.ERROR):
        assert read_base(reg, reader) == BASE
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
    reader = FileReader(reg, 0, hot)
    for _ in range(2):
        read_tuned(reg, reader)
    _damage(hot, how)
    with caplog.at_level(logging.ERROR):
        assert read_tuned(reg, reader) == TUNED
    assert "no longer kept" in caplog.text
    assert hot.kept_bytes == 0
    for _ in range(3):
        assert read_tuned(reg, reader) == TUNED
    assert hot.kept_bytes == 0


def test_damage_of_what_is_stored_stays_damage(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        ensure_repository(reg, ann, "ann/m", private=True)
        send_pack(reg, ann, "ann/m", frames_of(BASE, codec="neuzip_lossless"))
        send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        hot = HotBases(Disk(), tmp_path, LIMIT)
        reader = FileReader(reg, 0, hot)
        for _ in range(2):
            assert read_tuned(reg, reader) == TUNED
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
            read_tuned(reg, reader)
        # The cached base was correct.
        assert hot.kept_bytes == kept > 0

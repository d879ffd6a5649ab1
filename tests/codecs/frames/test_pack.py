"""A pack returns every frame that was added, and altered packs are refused."""

import io

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    MAX_PACK,
    CorruptFrame,
    CorruptPack,
    DType,
    InvalidInput,
    PackEntry,
    PackWriter,
    TooLarge,
    UnsupportedVersion,
    read_index,
    tensor_id,
    verify_pack_hash,
)
from deltahub.codecs.frames.pack import INDEX_ROW, PACK_MAGIC
from support.codecs.frames import make_frame

VERSION_AT = len(PACK_MAGIC)
TENSORS = [bytes([i]) * (50 + i) for i in range(3)]
FRAMES = [make_frame("raw", DType.U8, 1, len(data), data, data) for data in TENSORS]


def pack_of(frames: list[bytes]) -> bytes:
    sink = io.BytesIO()
    writer = PackWriter(sink)
    for frame in frames:
        assert writer.fits(len(frame))
        writer.add(frame)
    expected_size = writer.size
    summary = writer.finish()
    pack = sink.getvalue()
    assert summary.size == expected_size == len(pack)
    assert summary.hash == tensor_id(pack)
    assert summary.n_frames == writer.n_frames == len(frames)
    return pack


def index_of(pack: bytes) -> list[PackEntry]:
    return read_index(lambda offset, length: pack[offset : offset + length], len(pack))


def check(pack: bytes) -> None:
    index_of(pack)
    verify_pack_hash([pack])


PACK = pack_of(FRAMES)
INDEX_AT = 16 + sum(map(len, FRAMES))


def resealed(pack: bytes) -> bytes:
    """The pack with a correct hash in its trailer."""
    covered = pack[:-36]
    return covered + blake3(covered).digest() + b"KPHD"


@given(sizes=st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_every_frame_comes_back_where_the_index_says(sizes: list[int]) -> None:
    tensors = [bytes([i]) * size for i, size in enumerate(sizes)]
    frames = [make_frame("zstd", DType.U8, 1, len(data), data, data) for data in tensors]
    pack = pack_of(frames)
    entries = index_of(pack)
    assert [pack[e.offset : e.offset + e.length] for e in entries] == frames
    assert [e.tensor for e in entries] == [tensor_id(data) for data in tensors]


@given(step=st.integers(1, len(PACK)))
def test_the_hash_is_checked_over_chunks_of_any_size(step: int) -> None:
    chunks = [PACK[i : i + step] for i in range(0, len(PACK), step)]
    assert verify_pack_hash(chunks) == tensor_id(PACK)


def test_every_flipped_bit_is_refused() -> None:
    for bit in range(8 * len(PACK)):
        damaged = bytearray(PACK)
        damaged[bit // 8] ^= 1 << bit % 8
        refusal = UnsupportedVersion if bit // 8 == VERSION_AT else CorruptPack
        with pytest.raises(refusal):
            check(bytes(damaged))


def test_every_truncation_is_refused() -> None:
    for length in range(len(PACK)):
        with pytest.raises(CorruptPack):
            index_of(PACK[:length])
        with pytest.raises(CorruptPack):
            verify_pack_hash([PACK[:length]])


@given(junk=st.binary(max_size=300), at=st.integers(0, len(PACK)))
def test_junk_is_refused(junk: bytes, at: int) -> None:
    """Junk instead of a pack, after the beginning of a pack, and before a pack's end."""
    for candidate in (junk, PACK[:at] + junk, junk + PACK[at:]):
        if candidate != PACK:
            with pytest.raises((CorruptPack, UnsupportedVersion)):
                check(candidate)


def test_bytes_after_the_pack_are_refused() -> None:
    with pytest.raises(CorruptPack):
        index_of(PACK + b"\0")


def with_index(rows: list[tuple[int, int, bytes]], **counts: int) -> bytes:
    index = b"".join(INDEX_ROW.pack(*row) for row in rows)
    offset = counts.get("offset", INDEX_AT)
    n_frames = counts.get("n_frames", len(rows))
    counted = offset.to_bytes(8, "little") + n_frames.to_bytes(4, "little") + bytes(4)
    return resealed(PACK[:INDEX_AT] + index + counted + bytes(36))


ROWS = [(entry.offset, entry.length, entry.tensor) for entry in index_of(PACK)]
(AT0, LEN0, ID0), (AT1, LEN1, ID1), (AT2, LEN2, ID2) = ROWS

FORGED = {
    "no frames": with_index([]),
    "a frame that overlaps the last": with_index([ROWS[0], (AT0, LEN0 + LEN1, ID1), ROWS[2]]),
    "a gap between frames": with_index([(AT0, LEN0 - 1, ID0), ROWS[1], ROWS[2]]),
    "frames in another order": with_index([ROWS[1], ROWS[0], ROWS[2]]),
    "a frame within the header": with_index([(0, LEN0 + 16, ID0), ROWS[1], ROWS[2]]),
    "a frame that reaches into the index": with_index([*ROWS[:2], (AT2, LEN2 + 1, ID2)]),
    "a frame that ends before the index": with_index([*ROWS[:2], (AT2, LEN2 - 1, ID2)]),
    "a frame of no bytes": with_index([*ROWS, (INDEX_AT, 0, ID2)]),
    "lengths that wrap": with_index([(AT0, (1 << 64) - 1, ID0), ROWS[1], ROWS[2]]),
    "an index beyond its end": with_index(ROWS, offset=1 << 40),
    "2^32 - 1 frames": with_index(ROWS, n_frames=(1 << 32) - 1),
    "fewer frames than rows": with_index(ROWS, n_frames=2),
    "unused trailer bytes": resealed(PACK[:-37] + b"\1" + PACK[-36:]),
    "unused header bytes": resealed(PACK[:5] + b"\1" + PACK[6:]),
}


@pytest.mark.parametrize("fault", list(FORGED))
def test_a_pack_is_refused_that_has(fault: str) -> None:
    assert index_of(with_index(ROWS)) == index_of(PACK)
    verify_pack_hash([FORGED[fault]])
    with pytest.raises(CorruptPack):
        index_of(FORGED[fault])


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_told_from_damage(version: int) -> None:
    other = resealed(PACK[:VERSION_AT] + bytes([version]) + PACK[VERSION_AT + 1 :])
    with pytest.raises(UnsupportedVersion, match=f"pack version {version}; this release reads 1"):
        index_of(other)


@pytest.mark.parametrize("size", [0, 52, 68, MAX_PACK + 1, 1 << 60])
def test_a_size_that_no_pack_has_is_refused_unread(size: int) -> None:
    def read_nothing(offset: int, length: int) -> bytes:
        raise AssertionError("nothing may be read")

    with pytest.raises(CorruptPack):
        read_index(read_nothing, size)


def test_a_source_that_gives_fewer_bytes_is_noticed() -> None:
    with pytest.raises(CorruptPack):
        read_index(lambda offset, length: PACK[offset : offset + length - 1], len(PACK))


def test_a_writer_takes_whole_frames_only() -> None:
    writer = PackWriter(io.BytesIO())
    with pytest.raises(CorruptFrame):
        writer.add(b"no frame" * 20)
    with pytest.raises(InvalidInput):
        writer.add(FRAMES[0][:-1])
    with pytest.raises(InvalidInput):
        writer.add(FRAMES[0] + b"\0")
    with pytest.raises(InvalidInput):
        writer.finish()


class Nowhere(io.RawIOBase):
    def write(self, data: object) -> int:
        return 0


def test_a_full_pack_takes_no_more() -> None:
    data = bytes(40 << 20)
    frame = make_frame("raw", DType.U8, 1, len(data), data, data)
    writer = PackWriter(Nowhere())  # type: ignore[arg-type]  # only write() is used
    for _ in range(3):
        writer.add(frame)
    assert not writer.fits(len(frame))
    with pytest.raises(TooLarge, match=str(MAX_PACK)):
        writer.add(frame)
    assert writer.fits(len(FRAMES[0]))
    assert writer.finish().size < MAX_PACK

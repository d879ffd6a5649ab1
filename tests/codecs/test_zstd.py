"""The zstd codec: small for text, and hostile bytes get no memory and no say."""

import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    CorruptFrame,
    DType,
    FrameView,
    TensorSpec,
    decode_frame,
    encode_frame,
    split_frames,
    tensor_id,
)
from deltahub.codecs.zstd import zstd_header
from support.codecs.frames import forge_table, make_frame, table_of

TEXT = b"a line of text that repeats\n" * 400
FRAME = make_frame("zstd", DType.U8, 1, len(TEXT), TEXT, TEXT)


def with_stream(stream: bytes) -> bytes:
    """FRAME with another zstd stream in its block, every checksum of ours right."""
    guard = (xxhash.xxh3_64_intdigest(stream) & 0xFFFFFFFF).to_bytes(4, "little")
    stored = guard + stream
    return forge_table(FRAME, [(len(stored), 2, table_of(FRAME)[0][2])], stored)


def test_text_becomes_small() -> None:
    assert len(FRAME) < len(TEXT) // 10
    assert decode_frame(with_stream(zstandard.ZstdCompressor(level=1).compress(TEXT))) == TEXT


def test_random_bytes_are_stored_raw() -> None:
    noise = b"".join(xxhash.xxh3_128_digest(bytes([i])) for i in range(256))
    frame = make_frame("zstd", DType.U8, 1, len(noise), noise, noise)
    assert FrameView.parse(frame).header.codec == "raw"


def test_a_repeat_at_a_distance_of_megabytes_is_found() -> None:
    noise = b"".join(xxhash.xxh3_128_digest(i.to_bytes(4, "little")) for i in range(100_000))
    source = noise + bytes(3 << 20) + noise
    frame = make_frame("zstd", DType.U8, 1, len(source), source, source)
    assert len(frame) < 1.1 * len(noise)


def test_blocks_are_at_most_8_mib() -> None:
    source = bytes((16 << 20) + 1)
    spec = TensorSpec(tensor_id(source), DType.U8, 1, len(source))
    frame = encode_frame(spec, split_frames(spec)[0], source, codec="zstd")
    view = FrameView.parse(frame)
    assert view.header.n_blocks == 3
    assert max(view.block_span(i)[1] - view.block_span(i)[0] for i in range(3)) <= 8 << 20
    assert decode_frame(frame, threads=2) == source


COMPRESSOR = zstandard.ZstdCompressor()
BOMB = COMPRESSOR.compress(bytes(64 << 20))

FORGED = {
    "more content than the block": BOMB,
    "a bomb behind the right header": zstd_header(len(TEXT)) + BOMB[9:],
    "less content than the block": COMPRESSOR.compress(TEXT[:-1]),
    "no content size": zstandard.ZstdCompressor(write_content_size=False).compress(TEXT),
    "a checksum": zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
    "another frame after it": COMPRESSOR.compress(TEXT) + COMPRESSOR.compress(b"more"),
    "a byte after it": COMPRESSOR.compress(TEXT) + b"\0",
    "a skippable frame": b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + COMPRESSOR.compress(TEXT),
    "a content size in more bytes than needed": b"\x28\xb5\x2f\xfd\xa0"
    + len(TEXT).to_bytes(4, "little")
    + COMPRESSOR.compress(TEXT)[7:],
    "its end cut off": COMPRESSOR.compress(TEXT)[:-1],
    "nothing but a header": zstd_header(len(TEXT)),
    "nothing": b"",
    "no zstd at all": b"\xff" * 40,
}


@pytest.mark.parametrize("fault", list(FORGED))
def test_a_stream_is_refused_that_has(fault: str) -> None:
    with pytest.raises(CorruptFrame):
        decode_frame(with_stream(FORGED[fault]))


def test_a_block_shorter_than_its_guard_is_refused() -> None:
    for length in range(1, 4):
        with pytest.raises(CorruptFrame):
            decode_frame(forge_table(FRAME, [(length, 2, 0)], bytes(length)))


@given(size=st.integers(1, 1 << 18))
def test_the_expected_header_is_the_one_that_zstd_writes(size: int) -> None:
    # Content sizes in 1, 2 and 4 bytes.
    compressed = COMPRESSOR.compress(bytes(size))
    assert compressed.startswith(zstd_header(size))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65791, 65792, 65793, 8 << 20])
def test_content_sizes_at_the_seams(size: int) -> None:
    source = bytes(size)
    assert COMPRESSOR.compress(source).startswith(zstd_header(size)) or size > 1 << 20
    assert decode_frame(make_frame("zstd", DType.U8, 1, size, source, source)) == source

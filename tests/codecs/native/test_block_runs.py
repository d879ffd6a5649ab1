"""Many blocks in one native call give the same bytes and errors as one call for each block."""

import random
from functools import partial

import pytest
import xxhash

from deltahub.codecs import BlockMode, CorruptFrame, DType, Geometry
from deltahub.codecs._native import (
    FAULT_GUARD,
    FAULT_OTHER_BYTES,
    FAULT_STREAM,
    FmDeltaDecoder,
    FmDeltaEncoder,
    NeuzipDecoder,
    NeuzipEncoder,
    decode_uncoded_range,
)
from deltahub.codecs.blocks import block_checksum
from deltahub.codecs.frames import FrameRange, TensorSpec, encode_frame, open_frame
from deltahub.codecs.frames.base_plan import BasePlan, BaseSegment
from deltahub.codecs.ids import tensor_id
from deltahub.codecs.protocol import Codec, Effort
from deltahub.codecs.registry import BY_ID
from support.codecs.deltas import block_table, scaled_fine_tune
from support.codecs.kernels import every_kernel, running

OTHER = FAULT_OTHER_BYTES
ROWS, COLUMNS = 60, 2800
SOURCE, BASE = scaled_fine_tune(DType.BF16, ROWS, COLUMNS)
# Two rows equal those of the base; one is noise, which is stored raw.
NOISE = random.Random(0).randbytes(2 * COLUMNS)
TUNED = BASE[: 4 * COLUMNS] + NOISE + NOISE[::-1] + SOURCE[8 * COLUMNS :]
GEOMETRIES = [Geometry(DType.BF16, ROWS, COLUMNS, 2, 1), Geometry(DType.BF16, ROWS, COLUMNS, 1, 2)]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=["rows", "parts"])
every_codec = pytest.mark.parametrize("codec_id", ["fm_delta", "neuzip_lossless"])


def raw_run(
    data: bytes, rows: int, columns: int, checksums: list[int], first: int = 0, threads: int = 1
) -> tuple[int, int]:
    """Decodes raw blocks with these checksums, each with so many rows."""
    size = rows * columns
    parts = [data[begin : begin + size] for begin in range(0, len(data), size)]
    geometry = Geometry(DType.U8, first * rows + len(data) // columns, columns, rows, 1)
    table = block_table(
        geometry,
        [
            *[(size, BlockMode.RAW, 0)] * first,
            *[
                (len(part), BlockMode.RAW, known)
                for part, known in zip(parts, checksums, strict=True)
            ],
        ],
        has_base=False,
    )
    out = bytearray(len(data))
    found = decode_uncoded_range(table, first, first + len(checksums), data, b"", out, threads)
    assert out == data or found[1] != 0
    return found


@every_kernel
@pytest.mark.parametrize("seed", [0, 1, 1000])
def test_checksums_are_xxh3(kernels: str, seed: int) -> None:
    data = random.Random(seed).randbytes(5000)
    with running(kernels):
        for n in (*range(1, 1300), 2047, 2048, 2049, 2112, 2113, 4096, 5000):
            known = xxhash.xxh3_64_intdigest(data[:n], seed=seed)
            assert raw_run(data[:n], 1, n, [known], seed) == (1, 0)
            assert raw_run(data[:n], 1, n, [known ^ 1 << n % 64], seed) == (0, OTHER)
            assert raw_run(data[:n], 1, n, [known], seed ^ 1) == (0, OTHER)


@every_kernel
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_block_with_another_checksum_is_found(kernels: str, threads: int) -> None:
    data = random.Random(1).randbytes(3 * 1000 + 300)
    parts = [data[begin : begin + 1000] for begin in range(0, 3300, 1000)]
    known = [xxhash.xxh3_64_intdigest(part, seed=7 + i) for i, part in enumerate(parts)]
    with running(kernels):
        assert raw_run(data, 10, 100, known, 7, threads) == (4, 0)
        for byte in range(0, len(data), 77):
            damaged = bytearray(data)
            damaged[byte] ^= 0x10
            damaged[-1] ^= 0x10
            assert raw_run(damaged, 10, 100, known, 7, threads) == (byte // 1000, OTHER)


@every_kernel
@every_codec
@every_geometry
def test_a_frame_is_the_same_by_any_number_of_threads(
    kernels: str, codec_id: str, geometry: Geometry
) -> None:
    codec = BY_ID[codec_id]
    base = memoryview(BASE) if codec.n_inputs > 0 else None
    with running(kernels):
        first, *others = [
            codec.encode(geometry, memoryview(TUNED), base, Effort.FAST, threads)
            for threads in (1, 2, 3, 8, 2**63)
        ]
    assert {BlockMode.CODED, BlockMode.RAW} <= set(first.blocks.modes)
    assert all(each == first for each in others)
    spans = map(geometry.block_bytes, range(geometry.n_blocks))
    assert first.checksums == [
        xxhash.xxh3_64_intdigest(TUNED[begin:end], seed=i) for i, (begin, end) in enumerate(spans)
    ]


def body_of(codec_id: str, geometry: Geometry) -> tuple[Codec, bytes, list[int], list[bytes]]:
    """(codec, prelude, modes, stored blocks) of TUNED."""
    codec = BY_ID[codec_id]
    base = memoryview(BASE) if codec.n_inputs > 0 else None
    body = codec.encode(geometry, memoryview(TUNED), base, Effort.DEFAULT, 1)
    return codec, body.prelude, [*body.blocks.modes], [b for _, b in body.blocks]


def decoded(
    codec_id: str, geometry: Geometry, span: range, *, threads: int = 1, damaged: int = -1
) -> bytes:
    """Decodes the blocks of `span`, with one bit of one block inverted."""
    codec, prelude, modes, blocks = body_of(codec_id, geometry)
    low, high = geometry.block_bytes(span[0])[0], geometry.block_bytes(span[-1])[1]
    stored = [bytearray(blocks[i]) for i in span]
    if damaged >= 0:
        stored[damaged - span[0]][len(blocks[damaged]) // 2] ^= 4
    out = bytearray(high - low)
    checksums = [
        block_checksum(TUNED[slice(*geometry.block_bytes(i))], i) for i in range(geometry.n_blocks)
    ]
    rows = zip(map(len, blocks), modes, checksums, strict=True)
    codec.decode(
        geometry,
        1,  # the only version of neuzip_lossless, and that of fm_delta without a stride
        prelude,
        block_table(geometry, rows, has_base=codec.n_inputs > 0),
        span.start,
        span.stop,
        memoryview(b"".join(stored)),
        memoryview(BASE)[low:high] if codec.n_inputs > 0 else None,
        memoryview(out),
        threads,
    )
    assert TUNED[low:high] == out or damaged >= 0
    return bytes(out)


@every_kernel
@every_codec
@every_geometry
@pytest.mark.parametrize("threads", [1, 2, 7, 2**64 - 1])
def test_any_run_of_blocks_decodes(
    kernels: str, codec_id: str, geometry: Geometry, threads: int
) -> None:
    _, _, modes, _ = body_of(codec_id, geometry)
    assert {BlockMode.CODED, BlockMode.RAW} <= set(modes)
    assert (BlockMode.UNCHANGED in modes) == (codec_id == "fm_delta")
    with running(kernels):
        for span in (range(geometry.n_blocks), range(1, 9), range(5, 6), range(7, 20)):
            decoded(codec_id, geometry, span, threads=threads)


@every_kernel
@every_codec
@every_geometry
def test_damage_anywhere_in_a_run_is_refused_by_the_block_that_has_it(
    kernels: str, codec_id: str, geometry: Geometry
) -> None:
    _, _, modes, _ = body_of(codec_id, geometry)
    with running(kernels):
        for damaged in [i for i in range(12) if modes[i] == BlockMode.CODED][::3]:
            for threads in (1, 2):
                with pytest.raises(CorruptFrame, match=f"^block {damaged} has a wrong guard$"):
                    decoded(codec_id, geometry, range(12), threads=threads, damaged=damaged)


@every_kernel
def test_another_base_is_refused_by_the_block_that_shows_it(kernels: str) -> None:
    spec = TensorSpec(tensor_id(TUNED), DType.BF16, ROWS, COLUMNS)
    part = FrameRange(0, ROWS * COLUMNS, ROWS, COLUMNS)
    plan = BasePlan((BaseSegment(tensor_id(BASE), DType.BF16, 0, part.count),), is_cast=False)
    view, body = open_frame(encode_frame(spec, part, TUNED, BASE, plan, "fm_delta"))
    assert view.header.n_blocks == 2
    other = bytearray(BASE)
    other[-2] ^= 1  # a mantissa bit: the stream still decodes
    for threads in (1, 2):
        out = memoryview(bytearray(len(TUNED)))
        with running(kernels), pytest.raises(CorruptFrame, match="block 1 decodes to other bytes"):
            view.decode_into(0, 2, body, other, out, threads)


# (length, mode, checksum) of blocks of 400, 400 and 200 zero bytes.
ZEROS = [
    (length, mode, block_checksum(bytes(size), i))
    for i, (length, mode, size) in enumerate([(0, 0, 400), (400, 1, 400), (200, 1, 200)])
]


@pytest.mark.parametrize(
    ("payload", "base", "out"),
    [
        (599, 1000, 1000),
        (601, 1000, 1000),
        (600, 999, 1000),
        (600, 1001, 1000),
        (600, 0, 1000),
        (600, 1000, 999),
        (600, 1001, 1001),
        (600, 999, 999),
        (0, 0, 0),
    ],
)
def test_buffers_that_do_not_fit_their_blocks_are_refused_before_they_are_read(
    payload: int, base: int, out: int
) -> None:
    """Three blocks; the first equals the base."""
    table = block_table(Geometry(DType.BF16, 5, 100, 2, 1), ZEROS, has_base=True)
    _, prelude, _, _ = body_of("fm_delta", GEOMETRIES[0])
    decoder = FmDeltaDecoder(3, prelude, ROWS, COLUMNS)
    for run in (decoder.decode_range, decode_uncoded_range):
        decode = partial(run, table, 0, 3)
        assert decode(bytes(600), bytes(1000), bytearray(1000), 1) == (3, 0)
        with pytest.raises(ValueError, match=r"block|more bytes|base"):
            decode(bytes(payload), bytes(base), bytearray(out), 1)


@pytest.mark.parametrize(("payload", "out"), [(999, 1000), (1001, 1000), (1000, 999), (1001, 1001)])
def test_the_same_holds_without_a_base(payload: int, out: int) -> None:
    rows = [
        (n, BlockMode.RAW, known) for n, (_, _, known) in zip((400, 400, 200), ZEROS, strict=True)
    ]
    table = block_table(Geometry(DType.BF16, 5, 100, 2, 1), rows, has_base=False)
    _, prelude, _, _ = body_of("neuzip_lossless", GEOMETRIES[0])
    decoder = NeuzipDecoder(3, prelude)
    assert decoder.decode_range(table, 0, 3, bytes(1000), bytearray(1000), 1) == (3, 0)
    with pytest.raises(ValueError, match=r"block|more bytes"):
        decoder.decode_range(table, 0, 3, bytes(payload), bytearray(out), 1)


def test_a_coded_block_of_half_a_word_is_refused() -> None:
    table = block_table(Geometry(DType.U8, 1, 25, 1, 1), [(20, BlockMode.CODED, 0)], has_base=False)
    _, prelude, _, _ = body_of("neuzip_lossless", GEOMETRIES[0])
    with pytest.raises(ValueError, match="whole number of words"):
        NeuzipDecoder(3, prelude).decode_range(table, 0, 1, bytes(20), bytearray(25), 1)


@pytest.mark.parametrize("shape", [(2, COLUMNS + 1), (2, COLUMNS - 1), (ROWS + 1, COLUMNS)])
def test_a_decoder_refuses_blocks_of_another_frame(shape: tuple[int, int]) -> None:
    size = 2 * shape[0] * shape[1]
    geometry = Geometry(DType.BF16, *shape, shape[0], 1)
    table = block_table(geometry, [(20, BlockMode.CODED, 0)], has_base=True)
    _, prelude, _, _ = body_of("fm_delta", GEOMETRIES[0])
    decoder = FmDeltaDecoder(3, prelude, ROWS, COLUMNS)
    with pytest.raises(ValueError, match="block"):
        decoder.decode_range(table, 0, 1, bytes(20), bytes(size), bytearray(size), 1)


def test_a_coded_block_of_a_frame_without_tables_is_refused() -> None:
    rows = [(400, BlockMode.RAW, block_checksum(bytes(400), 0)), (20, BlockMode.CODED, 0)]
    table = block_table(Geometry(DType.BF16, 4, 100, 2, 1), rows, has_base=False)
    found = decode_uncoded_range(table, 0, 2, bytes(420), b"", bytearray(800), 1)
    assert found == (1, FAULT_GUARD)


def coded_block() -> tuple[bytes, bytes]:
    """(stored bytes, base) of the first coded block."""
    geometry = GEOMETRIES[0]
    _, _, modes, blocks = body_of("fm_delta", geometry)
    index = modes.index(BlockMode.CODED)
    return blocks[index], BASE[slice(*geometry.block_bytes(index))]


def fault_of(stored: bytes, base: bytes) -> int:
    """The fault of one coded block, in a table that has the checksum of zeros."""
    _, prelude, _, _ = body_of("fm_delta", GEOMETRIES[0])
    size = len(base)
    rows = [(len(stored), BlockMode.CODED, block_checksum(bytes(size), 0))]
    table = block_table(Geometry(DType.BF16, 2, COLUMNS, 2, 1), rows, has_base=True)
    decoder = FmDeltaDecoder(3, prelude, ROWS, COLUMNS)
    return decoder.decode_range(table, 0, 1, stored, base, bytearray(size), 1)[1]


def test_a_stream_that_goes_on_behind_its_own_guard_is_refused_in_a_run() -> None:
    stored, base = coded_block()
    for spare_digits in (0, 1, 8):
        number = int.from_bytes(stored[4:], "little") << spare_digits
        stream = number.to_bytes((number.bit_length() + 7) // 8, "little")
        longer = xxhash.xxh3_64_intdigest(stream).to_bytes(8, "little")[:4] + stream
        assert fault_of(longer, base) == (FAULT_STREAM if spare_digits else OTHER)


@pytest.mark.parametrize("length", range(1, 6))
def test_a_coded_block_that_is_hardly_longer_than_its_guard_is_refused(length: int) -> None:
    _, base = coded_block()
    guard = xxhash.xxh3_64_intdigest(bytes(max(length - 4, 0))).to_bytes(8, "little")[:4]
    stored = (guard + bytes(length))[:length]
    assert fault_of(stored, base) == (FAULT_STREAM if length > 4 else FAULT_GUARD)


@pytest.mark.parametrize(
    ("rows_per_block", "parts", "size", "room", "fault"),
    [
        (0, 1, 40, 40, "whole rows"),
        (1, 0, 40, 40, "whole rows"),
        (2, 2, 40, 40, "whole rows"),
        (1, 6, 40, 40, "whole rows"),
        (1, 4, 40, 40, "whole rows"),
        (5, 1, 40, 40, "whole rows"),
        (2**64 - 1, 1, 40, 40, "whole rows"),
        (1, 1, 38, 40, "rows x columns"),
        (1, 1, 40, 39, "room"),
    ],
)
def test_a_frame_that_is_cut_into_no_such_blocks_is_refused(
    rows_per_block: int, parts: int, size: int, room: int, fault: str
) -> None:
    """4 rows of 5 BF16 words: of four parts, two words each, the last would be empty."""
    cut, out = (rows_per_block, parts), bytearray(room)
    words, base = SOURCE[:40], BASE[:40]
    deltas, floats = (
        FmDeltaEncoder(3, words, base, 4, 5, 2, b"", b"", 0, False),
        NeuzipEncoder(3, words),
    )
    with pytest.raises(ValueError, match=fault):
        deltas.encode_all(*cut, words[:size], base[:size], out, 1)
    with pytest.raises(ValueError, match=fault):
        floats.encode_all(4, 5, *cut, words[:size], out, 1)
    assert not any(out)


def test_a_base_of_another_size_is_refused_before_a_block_is_encoded() -> None:
    encoder = FmDeltaEncoder(3, SOURCE[:40], BASE[:40], 4, 5, 2, b"", b"", 0, False)
    with pytest.raises(ValueError, match="base"):
        encoder.encode_all(1, 1, SOURCE[:40], BASE[:39], bytearray(40), 1)


@pytest.mark.parametrize("threads", [1, 4])
def test_words_that_were_not_planned_end_the_encoding_of_a_frame(threads: int) -> None:
    """No thread waits for the results of blocks that were not encoded."""
    plain = bytes(2 * 600)
    encoder = NeuzipEncoder(3, plain)
    with pytest.raises(RuntimeError, match="tables do not hold"):
        encoder.encode_all(60, 10, 1, 1, plain[:800] + SOURCE[:400], bytearray(1200), threads)

"""Many blocks in one native call: the bytes and the refusals are those of block by block."""

import random

import pytest
import xxhash

from deltahub.codecs import BlockMode, CorruptFrame, DType, Geometry
from deltahub.codecs._native import LEAST_CHECKED, FmDeltaDecoder, NeuzipDecoder, count_intact
from deltahub.codecs.base_plan import BasePlan, BaseSegment
from deltahub.codecs.frame import FrameRange, TensorSpec, encode_frame, open_frame
from deltahub.codecs.ids import tensor_id
from deltahub.codecs.protocol import Codec, Effort
from deltahub.codecs.registry import BY_ID
from support.deltas import scaled_fine_tune
from support.kernels import every_kernel, running

ROWS, COLUMNS = 60, 2800
SOURCE, BASE = scaled_fine_tune(DType.BF16, ROWS, COLUMNS)
# Two rows are as they were; one is noise, which is stored raw.
NOISE = random.Random(0).randbytes(2 * COLUMNS)
TUNED = BASE[: 4 * COLUMNS] + NOISE + NOISE[::-1] + SOURCE[8 * COLUMNS :]
GEOMETRIES = [Geometry(DType.BF16, ROWS, COLUMNS, 2, 1), Geometry(DType.BF16, ROWS, COLUMNS, 1, 2)]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=["rows", "parts"])
every_codec = pytest.mark.parametrize("codec_id", ["fm_delta", "neuzip_lossless"])


@every_kernel
@pytest.mark.parametrize("seed", [0, 1, 65535, 1 << 40])
def test_checksums_are_xxh3(kernels: str, seed: int) -> None:
    data = random.Random(seed).randbytes(5000)
    with running(kernels):
        for n in (*range(LEAST_CHECKED + 1, 1300), 2047, 2048, 2049, 2112, 2113, 4096, 5000):
            known = xxhash.xxh3_64_intdigest(data[:n], seed=seed)
            assert count_intact(seed, [n], [known], data[:n]) == 1
            assert count_intact(seed, [n], [known ^ 1 << n % 64], data[:n]) == 0
            assert count_intact(seed + 1, [n], [known], data[:n]) == 0


@every_kernel
def test_the_first_block_with_another_checksum_is_found(kernels: str) -> None:
    data = random.Random(1).randbytes(3 * 1000 + 300)
    sizes = [1000, 1000, 1000, 300]
    parts = [data[1000 * i : 1000 * i + n] for i, n in enumerate(sizes)]
    known = [xxhash.xxh3_64_intdigest(part, seed=7 + i) for i, part in enumerate(parts)]
    with running(kernels):
        assert count_intact(7, sizes, known, data) == 4
        for byte in range(0, len(data), 77):
            damaged = bytearray(data)
            damaged[byte] ^= 0x10
            assert count_intact(7, sizes, known, damaged) == byte // 1000


@pytest.mark.parametrize(
    ("sizes", "checksums"),
    [([600], [0]), ([400, 700], [0, 0]), ([1000], []), ([760, 240], [0, 0]), ([1001], [0])],
)
def test_blocks_that_are_not_the_bytes_are_refused(sizes: list[int], checksums: list[int]) -> None:
    with pytest.raises(ValueError, match=r"block|more bytes"):
        count_intact(0, sizes, checksums, bytes(1000))


def body_of(codec_id: str, geometry: Geometry) -> tuple[Codec, bytes, list[int], list[bytes]]:
    """(codec, prelude, modes, stored blocks) of TUNED."""
    codec = BY_ID[codec_id]
    base = memoryview(BASE) if codec.needs_base else None
    body = codec.encode(geometry, memoryview(TUNED), base, Effort.DEFAULT, 1)
    return codec, body.prelude, [*body.blocks.modes], [b for _, b in body.blocks]


def decoded(
    codec_id: str, geometry: Geometry, span: range, *, threads: int, damaged: int = -1
) -> bytes:
    """Blocks of `span`; a bit of one is turned over."""
    codec, prelude, modes, blocks = body_of(codec_id, geometry)
    low, high = geometry.block_bytes(span[0])[0], geometry.block_bytes(span[-1])[1]
    stored = [bytearray(blocks[i]) for i in span]
    if damaged >= 0:
        stored[damaged - span[0]][len(blocks[damaged]) // 2] ^= 4
    out = bytearray(high - low)
    codec.decode(
        geometry,
        codec.version,
        memoryview(prelude),
        span[0],
        [modes[i] for i in span],
        [len(block) for block in stored],
        memoryview(b"".join(stored)),
        memoryview(BASE)[low:high] if codec.needs_base else None,
        memoryview(out),
        threads,
    )
    assert TUNED[low:high] == out or damaged >= 0
    return bytes(out)


@every_kernel
@every_codec
@every_geometry
def test_any_run_of_blocks_decodes_in_one_call(
    kernels: str, codec_id: str, geometry: Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, modes, blocks = body_of(codec_id, geometry)
    assert {BlockMode.CODED, BlockMode.RAW} <= set(modes)
    assert (BlockMode.UNCHANGED in modes) == (codec_id == "fm_delta")
    assert all(len(b) > LEAST_CHECKED + 4 for m, b in zip(modes, blocks, strict=True) if m == 2)
    for decoder in (FmDeltaDecoder, NeuzipDecoder):
        monkeypatch.delattr(decoder, "decode")  # block by block
    with running(kernels):
        for span in (range(geometry.n_blocks), range(1, 9), range(5, 6), range(7, 20)):
            decoded(codec_id, geometry, span, threads=1)


@every_kernel
@every_codec
@every_geometry
def test_damage_anywhere_in_a_run_is_refused_in_the_same_words(
    kernels: str, codec_id: str, geometry: Geometry
) -> None:
    _, _, modes, _ = body_of(codec_id, geometry)
    with running(kernels):
        for damaged in [i for i in range(12) if modes[i] == BlockMode.CODED][::3]:
            said = []
            for threads in (1, 2):
                with pytest.raises(CorruptFrame) as refusal:
                    decoded(codec_id, geometry, range(12), threads=threads, damaged=damaged)
                said.append(str(refusal.value))
            assert said[0] == said[1]


@every_kernel
def test_another_base_is_refused_by_the_block_that_shows_it(kernels: str) -> None:
    spec = TensorSpec(tensor_id(TUNED), DType.BF16, ROWS, COLUMNS)
    part = FrameRange(0, ROWS * COLUMNS, ROWS, COLUMNS)
    plan = BasePlan((BaseSegment(tensor_id(BASE), DType.BF16, 0, part.count),), is_cast=False)
    view, body = open_frame(encode_frame(spec, part, TUNED, BASE, plan, "fm_delta"))
    assert view.header.n_blocks == 2
    other = bytearray(BASE)
    other[-2] ^= 1  # a mantissa: the stream decodes all the same
    for threads in (1, 2):
        out = memoryview(bytearray(len(TUNED)))
        with running(kernels), pytest.raises(CorruptFrame, match="block 1 decodes to other bytes"):
            view.decode_into(0, 2, body, other, out, threads)


def _decode_floats(modes: list[int], lengths: list[int], sizes: list[int], n: int) -> bool:
    _, prelude, _, _ = body_of("neuzip_lossless", GEOMETRIES[0])
    return NeuzipDecoder(3, prelude, 2).decode_run(modes, lengths, sizes, bytes(n), bytearray(n))


@pytest.mark.parametrize(
    ("modes", "lengths", "sizes"),
    [
        ([1], [999], [1000]),
        ([1], [1001], [1001]),
        ([1, 1], [500], [500, 500]),
        ([1], [1000], [1000, 0]),
        ([1, 1], [2**64 - 24, 1024], [2**64 - 24, 1024]),
        ([0], [0], [1000]),
        ([3], [1000], [1000]),
        ([2, 1], [244, 756], [244, 756]),
    ],
)
def test_runs_that_do_not_fit_their_buffers_are_refused(
    modes: list[int], lengths: list[int], sizes: list[int]
) -> None:
    assert _decode_floats([1], [1000], [1000], 1000)
    with pytest.raises(ValueError, match=r"block|more bytes"):
        _decode_floats(modes, lengths, sizes, 1000)


def decode_run(
    modes: list[int],
    lengths: list[int],
    sizes: list[int],
    payload: bytes,
    out: int,
    base: bytes,
    *,
    parts: int = 1,
) -> bool:
    """out: its size."""
    _, prelude, _, _ = body_of("fm_delta", GEOMETRIES[0])
    decoder = FmDeltaDecoder(3, prelude, ROWS, COLUMNS)
    return decoder.decode_run(0, parts, base, modes, lengths, sizes, payload, bytearray(out))


WRAPS = 2**64 - 1
COMPLETE = ([0, 1], [0, 600], [400, 600], bytes(600), 1000, bytes(1000))
ONE_FAULT = {
    "a mode too few": ([0], [0, 600], [400, 600], bytes(600), 1000, bytes(1000)),
    "a size too few": ([0, 1], [0, 600], [400], bytes(600), 1000, bytes(1000)),
    "an unknown mode": ([0, 3], [0, 600], [400, 600], bytes(600), 1000, bytes(1000)),
    "a raw block that is short": ([0, 1], [0, 599], [400, 600], bytes(599), 1000, bytes(1000)),
    "a raw block that is long": ([0, 1], [0, 601], [400, 600], bytes(601), 1000, bytes(1000)),
    "an unchanged block with bytes": ([0, 1], [5, 600], [400, 600], bytes(605), 1000, bytes(1000)),
    "an unchanged block of no base": ([0, 1], [0, 600], [400, 600], bytes(600), 1000, b""),
    "a base that is short": ([1, 1], [400, 600], [400, 600], bytes(1000), 1000, bytes(999)),
    "a base that is long": ([1, 1], [400, 600], [400, 600], bytes(1000), 1000, bytes(1001)),
    "a coded block of no base": ([2], [600], [1000], bytes(600), 1000, b""),
    "a block of no bytes": ([1, 1], [1000, 0], [1000, 0], bytes(1000), 1000, bytes(1000)),
    "a stored byte too many": ([0, 1], [0, 600], [400, 600], bytes(601), 1000, bytes(1000)),
    "a decoded byte too many": ([1, 1], [400, 600], [400, 600], bytes(1000), 1001, bytes(1001)),
    "lengths whose sum wraps": ([1, 2], [601, WRAPS], [601, 399], bytes(600), 1000, bytes(1000)),
    "sizes whose sum wraps": ([2, 2], [300, 300], [1001, WRAPS], bytes(600), 1000, bytes(1000)),
}


@pytest.mark.parametrize("fault", list(ONE_FAULT))
def test_a_run_with_one_fault_is_refused_before_it_is_read(fault: str) -> None:
    assert decode_run(*COMPLETE)
    with pytest.raises(ValueError, match=r"block|more bytes|base"):
        decode_run(*ONE_FAULT[fault])


def coded_block() -> tuple[bytes, bytes]:
    """(stored bytes, base) of the first coded block."""
    geometry = GEOMETRIES[0]
    _, _, modes, blocks = body_of("fm_delta", geometry)
    index = modes.index(BlockMode.CODED)
    return blocks[index], BASE[slice(*geometry.block_bytes(index))]


@pytest.mark.parametrize("parts", [0, COLUMNS + 1])
def test_rows_of_no_parts_or_of_empty_ones_are_refused(parts: int) -> None:
    stored, base = coded_block()
    size = len(base)
    assert decode_run([2], [len(stored)], [size], stored, size, base)
    with pytest.raises(ValueError, match="parts"):
        decode_run([2], [len(stored)], [size], stored, size, base, parts=parts)


def test_a_stream_that_goes_on_behind_its_own_guard_is_refused_in_a_run() -> None:
    stored, base = coded_block()
    for spare_digits in (0, 1, 8):
        number = int.from_bytes(stored[4:], "little") << spare_digits
        stream = number.to_bytes((number.bit_length() + 7) // 8, "little")
        longer = xxhash.xxh3_64_intdigest(stream).to_bytes(8, "little")[:4] + stream
        is_decoded = decode_run([2], [len(longer)], [len(base)], longer, len(base), base)
        assert is_decoded == (spare_digits == 0)

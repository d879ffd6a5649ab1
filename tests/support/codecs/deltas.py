"""Words of fine-tunes and words at their limits, and their encoded bodies."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from deltahub.codecs import BY_ID, BlockMode, DType, EncodedBody, Geometry
from deltahub.codecs._native import BlockTable
from deltahub.codecs.frames.header import TABLE_ROW
from deltahub.codecs.protocol import Effort

Words = npt.NDArray[np.unsignedinteger]

# The largest finite word of each float dtype. Words above it are infinite or NaN.
LAST_FINITE = {
    DType.F64: 0x7FEF_FFFF_FFFF_FFFF,
    DType.F32: 0x7F7F_FFFF,
    DType.F16: 0x7BFF,
    DType.BF16: 0x7F7F,
    DType.F8_E4M3: 0x7E,
    DType.F8_E5M2: 0x7B,
}


def fine_tune(dtype: DType, count: int, seed: int = 0, step: float = 2e-4) -> tuple[bytes, bytes]:
    """(fine-tune, base): normal weights, and steps of one size, as optimizers take."""
    random = np.random.default_rng(seed)
    weights = random.standard_normal(count) * 0.02
    tuned = weights + random.standard_normal(count) * step
    if not dtype.is_float:
        bits = 8 * dtype.itemsize
        scale = 2.0 ** (bits - 3)
        signed = np.dtype(f"<i{dtype.itemsize}")
        base = np.clip(weights * 8 * scale, -scale, scale).astype(signed)
        steps = np.rint(random.standard_normal(count) * min(scale / 20, 1000)).astype(signed)
        return (base + steps).tobytes(), base.tobytes()
    with np.errstate(over="ignore"):  # a large step makes infinities, which must come back too
        return as_words(tuned, dtype).tobytes(), as_words(weights, dtype).tobytes()


def scaled_fine_tune(
    dtype: DType, rows: int, columns: int, seed: int = 0, step: float = 2e-4
) -> tuple[bytes, bytes]:
    """(fine-tune, base) of a float dtype; each row and column has its own size of steps."""
    random = np.random.default_rng(seed)
    weights = random.standard_normal((rows, columns)) * 0.02
    sizes = np.exp(random.standard_normal((rows, 1)) + random.standard_normal((1, columns)))
    tuned = weights + random.standard_normal((rows, columns)) * sizes * step
    return as_words(tuned, dtype).tobytes(), as_words(weights, dtype).tobytes()


def as_words(values: npt.NDArray[np.float64], dtype: DType) -> Words:
    if dtype in (DType.F64, DType.F32, DType.F16):
        return values.astype(f"<f{dtype.itemsize}").view(f"<u{dtype.itemsize}")
    if dtype is DType.F8_E4M3:  # F16 with a bias of 15, reduced to 4 + 3 bits and a bias of 7
        halves = (values * 2.0**-8 * 16).astype("<f2").view("<u2")
        return ((halves >> 8 & 0x80) | (halves >> 7 & 0x7F)).astype("u1")
    if dtype is DType.F8_E5M2:
        return (values.astype("<f2").view("<u2") >> 8).astype("u1")
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2")


def with_stride(words: bytes, dtype: DType, stride: int) -> bytes:
    """The words with `stride` trailing zero bits."""
    numbers = np.frombuffer(words, f"<u{dtype.itemsize}")
    return (numbers >> stride << stride).astype(numbers.dtype).tobytes()


def special_words(dtype: DType) -> Words:
    """Zeros, smallest and largest numbers, infinities and NaNs, of both signs."""
    bits = 8 * dtype.itemsize
    last = LAST_FINITE.get(dtype, (1 << (bits - 1)) - 2)
    positive = {0, 1, 2, last // 2, last - 1, last, last + 1, (1 << (bits - 1)) - 1}
    both = sorted(positive | {word | 1 << (bits - 1) for word in positive})
    return np.array(both, dtype=f"<u{dtype.itemsize}")


def one_row(dtype: DType, count: int, n_blocks: int = 1) -> Geometry:
    return Geometry(dtype, 1, count, 1, n_blocks)


def block_rectangle(geometry: Geometry, index: int) -> tuple[int, int, int, int]:
    """(first row, first column, rows, columns) of a block."""
    first, count = geometry.block_elements(index)
    row, column = divmod(first, geometry.columns)
    if geometry.parts_per_row > 1:
        return row, column, 1, count
    return row, 0, count // geometry.columns, geometry.columns


def encode(
    geometry: Geometry,
    source: bytes,
    base: bytes,
    threads: int = 1,
    effort: Effort = Effort.DEFAULT,
) -> EncodedBody:
    """The body from the encoder of fm_delta."""
    views = memoryview(source), memoryview(base)
    return BY_ID["fm_delta"].encode(geometry, *views, effort, threads)


def encode_alone(geometry: Geometry, source: bytes, threads: int = 1) -> EncodedBody:
    """The body from the encoder of neuzip_lossless."""
    codec = BY_ID["neuzip_lossless"]
    return codec.encode(geometry, memoryview(source), None, Effort.DEFAULT, threads)


def block_table(
    geometry: Geometry, rows: Iterable[tuple[int, int, int]], *, has_base: bool
) -> BlockTable:
    """The table with these (length, mode, checksum). ValueError if no encoder writes it."""
    table = [*rows]
    return BlockTable(
        b"".join([TABLE_ROW.pack(*row) for row in table]),
        geometry.rows,
        geometry.columns,
        geometry.dtype.itemsize,
        geometry.rows_per_block,
        geometry.parts_per_row,
        has_base,
        sum(length for length, _, _ in table),
    )


def decode(geometry: Geometry, body: EncodedBody, base: bytes | None, threads: int = 1) -> bytes:
    """The decoded bytes of a body: by fm_delta with a base, else by neuzip_lossless."""
    out = bytearray(geometry.size_bytes)
    codec = BY_ID["neuzip_lossless" if base is None else "fm_delta"]
    rows = zip(body.blocks.lengths, body.blocks.modes, body.checksums, strict=True)
    codec.decode(
        geometry,
        codec.version if body.version is None else body.version,
        body.prelude,
        block_table(geometry, rows, has_base=base is not None),
        0,
        geometry.n_blocks,
        memoryview(b"".join(stored for _, stored in body.blocks)),
        None if base is None else memoryview(base),
        memoryview(out),
        threads,
    )
    return bytes(out)


def modes(body: EncodedBody) -> list[BlockMode]:
    return body.blocks.modes


def stored_bytes(body: EncodedBody) -> int:
    return len(body.prelude) + body.blocks.size_bytes

"""Every range of transposed matrices is what NumPy gives; damaged views are refused."""

from collections.abc import Iterator

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    BasePlan,
    BaseSegment,
    CodecError,
    CorruptFrame,
    DType,
    FrameRange,
    InvalidInput,
    TensorSpec,
    encode_frame,
    open_frame,
    parse_header,
    tensor_id,
)
from deltahub.codecs.frames import assemble
from deltahub.codecs.frames.base_plan import slice_plan
from deltahub.codecs.frames.header import peek_header_length
from deltahub.codecs.frames.views.packed import TRANSPOSED as VIEW
from deltahub.codecs.frames.views.transposed import MAX_MATRIX_BYTES, Transposed, read_transposed
from deltahub.codecs.ids import ZERO_ID

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@given(
    rows=st.integers(2, 9),
    columns=st.integers(2, 9),
    matrices=st.integers(1, 3),
    itemsize=st.sampled_from(sorted(WORDS)),
    data=st.data(),
)
def test_any_range_is_what_numpy_transposes(
    rows: int, columns: int, matrices: int, itemsize: int, data: st.DataObject
) -> None:
    size = rows * columns
    words = np.arange(matrices * size).astype(WORDS[itemsize])
    expected = words.reshape(matrices, rows, columns).transpose(0, 2, 1).reshape(-1)
    first = data.draw(st.integers(0, size - 1))
    start = data.draw(st.integers(0, len(words) - first))
    count = data.draw(st.integers(0, len(words) - first - start))
    out = np.zeros(count, WORDS[itemsize])

    def read(at: int, into: memoryview) -> None:
        into[:] = words[at : at + len(into) // itemsize].tobytes()

    read_transposed(Transposed(rows, columns, first), itemsize, start, read, memoryview(out))
    assert np.array_equal(out, expected[first + start : first + start + count])


@pytest.mark.parametrize(("rows", "columns"), [(3, 20_000), (20_000, 3), (700, 9_000)])
def test_long_rows_are_read_by_the_columns_that_are_needed(rows: int, columns: int) -> None:
    words = np.random.default_rng(1).integers(0, 1 << 16, rows * columns, dtype=np.uint16)
    expected = words.reshape(rows, columns).T.reshape(-1)
    n_read = 0

    def read(at: int, into: memoryview) -> None:
        nonlocal n_read
        n_read += len(into)
        into[:] = words[at : at + len(into) // 2].tobytes()

    for start, count in ((0, len(words)), (5, rows), (rows * 7 // 2, 2 * rows + 1)):
        n_read = 0
        start, count = min(start, columns), min(count, len(words) - columns)
        out = np.zeros(count, np.uint16)
        read_transposed(Transposed(rows, columns), 2, start, read, memoryview(out))
        assert np.array_equal(out, expected[start : start + count])
    if columns > 8192:
        assert n_read < 4 * 2 * count


def test_many_small_matrices_are_read_together() -> None:
    words = np.arange(4 * 300_000, dtype=np.uint16)
    expected = words.reshape(-1, 2, 2).transpose(0, 2, 1).reshape(-1)
    n_reads = 0

    def read(at: int, into: memoryview) -> None:
        nonlocal n_reads
        n_reads += 1
        into[:] = words[at : at + len(into) // 2].tobytes()

    out = np.zeros(len(words) - 3, np.uint16)
    read_transposed(Transposed(2, 2, 1), 2, 0, read, memoryview(out))
    assert np.array_equal(out, expected[1:-2])
    assert n_reads == 1


def test_a_view_of_many_segments_does_not_pass_over_all_of_them_for_each_read() -> None:
    rows, columns, n = 4096, 8200, 4096
    each = rows * columns // n
    ids = tensor_id(b"one"), tensor_id(b"two")
    segments = tuple(BaseSegment(ids[i % 2], DType.U8, each * i, each) for i in range(n))
    plan = BasePlan(segments, is_cast=False, view=Transposed(rows, columns))
    assert plan.fault(bytes(31) + b"t", DType.U8, rows * columns) is None
    n_passes = 0

    class Counted(tuple[BaseSegment, ...]):
        def __iter__(self) -> Iterator[BaseSegment]:
            nonlocal n_passes
            n_passes += 1
            return super().__iter__()

    plan.segments = Counted(segments)
    out = bytearray(rows)
    assemble(plan, DType.U8, 0, rows, lambda t, at, o: None, memoryview(out))
    assert n_passes < 10


@given(data=st.data())
def test_the_parts_of_a_plan_give_the_whole_base(data: st.DataObject) -> None:
    rows, columns, matrices = (data.draw(st.integers(2, 6)) for _ in range(3))
    count = rows * columns * matrices
    source = np.arange(count, dtype=np.uint16).tobytes()
    cut = data.draw(st.integers(1, count - 1))
    ids = tensor_id(source[: 2 * cut]), tensor_id(source[2 * cut :])
    store = {ids[0]: source[: 2 * cut], ids[1]: source[2 * cut :]}
    segments = (
        BaseSegment(ids[0], DType.BF16, 0, cut), BaseSegment(ids[1], DType.BF16, 0, count - cut),
    )  # fmt: skip
    plan = BasePlan(segments, is_cast=False, view=Transposed(rows, columns))
    assert plan.fault(bytes(31) + b"t", DType.BF16, count) is None
    out = bytearray()
    position = 0
    while position < count:
        n = data.draw(st.integers(1, count - position))
        part = slice_plan(plan, DType.BF16, position, n)
        assert part.fault(bytes(31) + b"t", DType.BF16, n) is None
        piece = bytearray(2 * n)
        assemble(part, DType.BF16, 0, n, lambda t, at, o: _copy(store[t], at, o), memoryview(piece))
        out += piece
        position += n
    expected = np.frombuffer(source, np.uint16).reshape(matrices, rows, columns)
    assert out == expected.transpose(0, 2, 1).tobytes()


def _copy(data: bytes, at: int, out: memoryview) -> None:
    out[:] = data[at : at + len(out)]


# -- in frames -----------------------------------------------------------------------------------

ROWS, COLUMNS = 24, 40
_RNG = np.random.default_rng(3)
BASE = (_RNG.normal(0, 0.02, ROWS * COLUMNS).astype(np.float32).view(np.uint32) >> 16).astype("<u2")
TUNED = BASE.reshape(ROWS, COLUMNS).T.reshape(-1) + _RNG.integers(0, 2, ROWS * COLUMNS, np.uint16)


def plan_of(view: Transposed | None, count: int = ROWS * COLUMNS) -> BasePlan:
    segment = BaseSegment(tensor_id(BASE.tobytes()), DType.BF16, 0, count)
    return BasePlan((segment,), is_cast=False, view=view)


def frame() -> bytes:
    raw = TUNED.astype("<u2").tobytes()
    spec = TensorSpec(tensor_id(raw), DType.BF16, COLUMNS, ROWS)
    part = FrameRange(0, spec.count, COLUMNS, ROWS)
    base = BASE.reshape(ROWS, COLUMNS).T.tobytes()
    return encode_frame(spec, part, raw, base, plan_of(Transposed(ROWS, COLUMNS)), "fm_delta")


def test_a_frame_with_a_view_comes_back() -> None:
    view, body = open_frame(frame())
    header = view.header
    assert header.codec == "fm_delta"
    assert header.base is not None
    assert header.base.view == Transposed(ROWS, COLUMNS)
    assert frame()[4] == 3
    aligned = bytearray(header.size_bytes)
    read = lambda t, at, o: _copy(BASE.tobytes(), at, o)  # noqa: E731
    assemble(header.base, header.dtype, 0, header.count, read, memoryview(aligned))
    out = bytearray(header.size_bytes)
    view.decode_into(0, header.n_blocks, body, aligned, memoryview(out))
    assert out == TUNED.astype("<u2").tobytes()


def changed(field: int, value: int) -> bytes:
    """The header with another number in its view: field 1 to 3."""
    data = bytearray(frame())
    length = peek_header_length(data[:16])
    at = length - 8 - VIEW.size
    numbers = list(VIEW.unpack_from(data, at))
    numbers[field] = value
    VIEW.pack_into(data, at, *numbers)
    data[length - 8 : length] = xxhash.xxh3_64_intdigest(data[: length - 8]).to_bytes(8, "little")
    return bytes(data[:length])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, 0), (0, 2), (1, 0), (1, 1), (2, 1), (1, ROWS * COLUMNS), (1, ROWS + 1),
        (2, COLUMNS - 1), (3, 1), (3, ROWS * COLUMNS), (1, 1 << 63), (2, 1 << 40), (3, 1 << 63),
    ],
)  # fmt: skip
def test_a_wrong_view_is_refused(field: int, value: int) -> None:
    assert parse_header(changed(field, VIEW.unpack_from(frame(), 128 + 56 - 8)[field])).base
    with pytest.raises(CorruptFrame):
        parse_header(changed(field, value))


@given(data=st.data())
def test_a_flipped_bit_of_the_header_is_refused(data: st.DataObject) -> None:
    damaged = bytearray(frame())
    length = peek_header_length(damaged[:16])
    bit = data.draw(st.integers(0, 8 * length - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CodecError):
        parse_header(damaged)


@pytest.mark.parametrize(
    "plan",
    [
        plan_of(Transposed(ROWS, COLUMNS + 1)),
        plan_of(Transposed(1, ROWS * COLUMNS)),
        plan_of(Transposed(ROWS, COLUMNS, 1)),
        plan_of(Transposed(ROWS, COLUMNS), 2 * ROWS * COLUMNS),
        BasePlan(
            (BaseSegment(ZERO_ID, DType.BF16, 0, 2 * ROWS * COLUMNS),),
            is_cast=False,
            n_inputs=2,
            view=Transposed(ROWS, COLUMNS),
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_by_the_encoder(plan: BasePlan) -> None:
    raw = TUNED.astype("<u2").tobytes()
    spec = TensorSpec(tensor_id(raw), DType.BF16, COLUMNS, ROWS)
    part = FrameRange(0, spec.count, COLUMNS, ROWS)
    with pytest.raises(InvalidInput):
        encode_frame(spec, part, raw, raw, plan, "fm_delta")


def test_a_matrix_above_the_limit_is_refused() -> None:
    half = MAX_MATRIX_BYTES // 4
    assert Transposed(2, half).fault(2 * half, 2 * half, DType.BF16) is None
    assert Transposed(2, half + 1).fault(2 * half + 2, 2 * half + 2, DType.BF16) is not None


def test_headers_without_a_view_are_as_before() -> None:
    raw = TUNED.astype("<u2").tobytes()
    spec = TensorSpec(tensor_id(raw), DType.BF16, COLUMNS, ROWS)
    part = FrameRange(0, spec.count, COLUMNS, ROWS)
    assert encode_frame(spec, part, raw, raw, plan_of(None), "fm_delta")[4] == 1

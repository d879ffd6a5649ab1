"""What goes into a frame comes out of it, bit for bit, whole or by any range of blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    BY_ID,
    DType,
    FrameRange,
    FrameView,
    Geometry,
    InvalidInput,
    TensorSpec,
    TooLarge,
    WrongBase,
    decode_frame,
    encode_frame,
    open_frame,
    raw_frame_length,
    shape_to_rows,
    split_frames,
    tensor_id,
    tensor_spec,
)
from deltahub.codecs.frames.header import choose_geometry
from support.codecs.frames import base_for, make_frame, make_pair

# Masks code only what a merge makes: tests/codecs/masks.
every_codec = pytest.mark.parametrize("codec", sorted(set(BY_ID) - {"masks"}))
dtypes = st.sampled_from(list(DType))


@every_codec
@given(dtype=dtypes, rows=st.integers(1, 40), columns=st.integers(1, 40), seed=st.integers(0, 99))
def test_a_frame_decodes_to_what_it_was_made_of(
    codec: str, dtype: DType, rows: int, columns: int, seed: int
) -> None:
    source, base = make_pair(dtype, rows * columns, seed)
    frame = make_frame(codec, dtype, rows, columns, source, base)
    assert decode_frame(frame, base_for(frame, base)) == source


@every_codec
@given(data=st.data(), dtype=dtypes)
def test_any_words_at_all_come_back(codec: str, data: st.DataObject, dtype: DType) -> None:
    size = dtype.itemsize * data.draw(st.integers(1, 64))
    source = data.draw(st.binary(min_size=size, max_size=size))
    base = data.draw(st.binary(min_size=size, max_size=size))
    frame = make_frame(codec, dtype, 1, size // dtype.itemsize, source, base)
    assert decode_frame(frame, base_for(frame, base)) == source


@every_codec
@given(source=st.binary(min_size=1, max_size=3000))
def test_a_frame_is_never_larger_than_a_raw_one(codec: str, source: bytes) -> None:
    frame = make_frame(codec, DType.U8, 1, len(source), source, source[::-1])
    assert len(frame) <= raw_frame_length(DType.U8, 1, len(source))


@every_codec
@pytest.mark.parametrize("shape", [(1, 3_000_001), (3, 1_100_000), (70_001, 50), (2_100_000, 1)])
def test_any_run_of_blocks_decodes_alone(codec: str, shape: tuple[int, int]) -> None:
    rows, columns = shape
    source, base = make_pair(DType.F32, rows * columns)
    frame = make_frame(codec, DType.F32, rows, columns, source, base)
    view, _ = open_frame(frame)
    n_blocks = view.header.n_blocks
    assert n_blocks > 1
    runs = {(0, 1), (n_blocks - 1, n_blocks), (0, n_blocks), (n_blocks // 2, n_blocks // 2 + 1)}
    for i, j in runs:
        begin, end = view.span(i, j)
        geometry = view.header.geometry
        assert (begin, end) == (geometry.block_bytes(i)[0], geometry.block_bytes(j - 1)[1])
        out = bytearray(end - begin)
        payload = frame[slice(*view.stored_span(i, j))]
        aligned = base[begin:end] if base_for(frame, base) else None
        view.decode_into(i, j, payload, aligned, memoryview(out), threads=2)
        assert out == source[begin:end]


@every_codec
def test_the_number_of_threads_does_not_show_in_the_bytes(codec: str) -> None:
    source, base = make_pair(DType.BF16, 1000 * 3000)
    one = make_frame(codec, DType.BF16, 1000, 3000, source, base, threads=1)
    assert make_frame(codec, DType.BF16, 1000, 3000, source, base, threads=3) == one
    assert decode_frame(one, base_for(one, base), threads=3) == source


@given(
    dtype=dtypes,
    rows=st.integers(1, 9),
    columns=st.integers(1, 40),
    rows_per_block=st.integers(1, 9),
    parts=st.integers(1, 40),
)
def test_blocks_cover_a_frame_once_and_in_order(
    dtype: DType, rows: int, columns: int, rows_per_block: int, parts: int
) -> None:
    geometry = Geometry(dtype, rows, columns, min(rows_per_block, rows), 1)
    width = -(-columns // min(parts, columns))
    in_parts = Geometry(dtype, rows, columns, 1, -(-columns // width))
    for candidate in (geometry, in_parts):
        spans = [candidate.block_bytes(i) for i in range(candidate.n_blocks)]
        assert spans[0][0] == 0
        assert spans[-1][1] == candidate.size_bytes
        assert all(begin < end for begin, end in spans)
        assert all(spans[i][1] == spans[i + 1][0] for i in range(len(spans) - 1))


@given(data=st.data())
def test_the_block_of_a_byte_is_the_one_whose_span_holds_it(data: st.DataObject) -> None:
    rows, columns = data.draw(st.sampled_from([(1, 2_500_001), (5, 700_001), (3_000_000, 1)]))
    view = FrameView.parse(_zeros_frame(rows, columns))
    byte = data.draw(st.integers(0, rows * columns - 1))
    begin, end = view.block_span(view.block_of_byte(byte))
    assert begin <= byte < end


_FRAMES: dict[tuple[int, int], bytes] = {}


def _zeros_frame(rows: int, columns: int) -> bytes:
    if (rows, columns) not in _FRAMES:
        zeros = bytes(rows * columns)
        _FRAMES[rows, columns] = make_frame("raw", DType.U8, rows, columns, zeros, zeros)
    return _FRAMES[rows, columns]


@given(
    dtype=dtypes,
    rows=st.integers(0, 300),
    columns=st.integers(0, 300),
    max_bytes=st.integers(8, 5000),
)
def test_frames_cover_a_tensor_once_and_in_order(
    dtype: DType, rows: int, columns: int, max_bytes: int
) -> None:
    parts = split_frames(TensorSpec(bytes(32), dtype, rows, columns), max_bytes)
    done = 0
    for part in parts:
        assert part.start == done
        assert part.count == part.rows * part.columns > 0
        assert part.count * dtype.itemsize <= max_bytes
        assert part.columns == columns or part.rows == 1
        done += part.count
    assert done == rows * columns


def test_a_tensor_above_64_mib_becomes_frames_of_whole_rows() -> None:
    spec = TensorSpec(bytes(32), DType.F32, 40_000, 1000)
    parts = split_frames(spec)
    assert [part.rows for part in parts] == [16777, 16777, 6446]
    assert {part.columns for part in parts} == {1000}


def test_a_tensor_comes_back_from_several_frames() -> None:
    source, _ = make_pair(DType.I16, 50 * 21)
    spec = TensorSpec(tensor_id(source), DType.I16, 50, 21)
    joined = b""
    for part in split_frames(spec, max_bytes=200):
        begin = part.start * 2
        frame = encode_frame(spec, part, source[begin : begin + part.count * 2])
        header = FrameView.parse(frame).header
        assert header.start_byte == begin
        assert header.tensor_size_bytes == len(source)
        joined += decode_frame(frame)
    assert joined == source


def test_a_tensor_larger_than_any_tensor_is_refused() -> None:
    with pytest.raises(TooLarge, match="1099511627776"):
        split_frames(TensorSpec(bytes(32), DType.F64, 1 << 30, 1 << 30))


@pytest.mark.parametrize(
    ("shape", "rows_and_columns"),
    [((), (1, 1)), ((7,), (1, 7)), ((3, 4), (3, 4)), ((3, 4, 5), (3, 20)), ((0, 4), (0, 4))],
)
def test_a_shape_has_coding_rows(shape: tuple[int, ...], rows_and_columns: object) -> None:
    assert shape_to_rows(shape) == rows_and_columns


@pytest.mark.parametrize(
    ("shape", "rows_and_columns"),
    [((3, 4), (3, 4)), ((8, 3, 64), (24, 64)), ((2, 3, 4, 99), (24, 99)), ((8, 64, 3), (8, 192))],
)
def test_stacked_matrices_are_coded_as_one(
    shape: tuple[int, ...], rows_and_columns: object
) -> None:
    spec = tensor_spec(bytes(32), "BF16", shape)
    assert (spec.rows, spec.columns) == rows_and_columns


@pytest.mark.parametrize(
    ("dtype", "shape", "rows_and_columns"),
    [
        ("C64", (3, 4), (3, 32)),
        ("F4", (4, 4), (4, 2)),
        ("F4", (2, 3), (1, 3)),
        ("F4", (2,), (1, 1)),
    ],
)
def test_elements_that_no_codec_knows_are_coded_as_bytes(
    dtype: str, shape: tuple[int, ...], rows_and_columns: object
) -> None:
    spec = tensor_spec(bytes(32), dtype, shape)
    assert (spec.dtype, (spec.rows, spec.columns)) == (DType.U8, rows_and_columns)


@every_codec
@given(dtype=dtypes, rows=st.integers(1, 1 << 20), columns=st.integers(1, 1 << 26))
def test_an_encoder_chooses_blocks_within_the_limits(
    codec: str, dtype: DType, rows: int, columns: int
) -> None:
    geometry = choose_geometry(BY_ID[codec], dtype, rows, columns)
    largest = geometry.block_elements(0)[1] * dtype.itemsize
    assert largest <= BY_ID[codec].block_bytes(dtype)
    assert 1 in (geometry.rows_per_block, geometry.parts_per_row)
    assert geometry.parts_per_row == -(-columns // geometry.part_width)


@pytest.mark.parametrize(
    ("rows", "rows_per_block", "n_blocks"),
    [(100, 100, 1), (292, 292, 1), (293, 147, 2), (448, 224, 2), (600, 150, 4), (1216, 203, 6)],
)
def test_blocks_are_alike_and_even_in_number(rows: int, rows_per_block: int, n_blocks: int) -> None:
    """So two threads finish at the same time. A block has at most 2^17 elements."""
    geometry = choose_geometry(BY_ID["fm_delta"], DType.BF16, rows, 448)
    assert (geometry.rows_per_block, geometry.n_blocks) == (rows_per_block, n_blocks)


@pytest.mark.parametrize(
    ("rows", "rows_per_block", "n_blocks"), [(1170, 1170, 1), (1171, 1170, 2), (3000, 1170, 3)]
)
def test_blocks_of_a_raw_frame_are_those_of_the_format(
    rows: int, rows_per_block: int, n_blocks: int
) -> None:
    """Smaller blocks would exceed the limit of frames: see "No frame exceeds a raw one"."""
    geometry = choose_geometry(BY_ID["raw"], DType.BF16, rows, 448)
    assert (geometry.rows_per_block, geometry.n_blocks) == (rows_per_block, n_blocks)


def test_a_delta_without_its_base_is_refused() -> None:
    source, base = make_pair(DType.F32, 5000)
    frame = make_frame("fm_delta", DType.F32, 1, 5000, source, base)
    with pytest.raises(WrongBase):
        decode_frame(frame)
    with pytest.raises(WrongBase):
        decode_frame(frame, base[:-4])
    with pytest.raises(WrongBase):
        decode_frame(make_frame("raw", DType.F32, 1, 5000, source, base), base)


@pytest.mark.parametrize(
    ("part", "size"),
    [
        (FrameRange(0, 0, 0, 5), 0),
        (FrameRange(0, 10, 2, 4), 10),
        (FrameRange(-5, 10, 1, 10), 10),
        (FrameRange(15, 10, 1, 10), 10),
        (FrameRange(0, 10, 1, 10), 11),
    ],
)
def test_an_encoder_refuses_a_range_that_is_none(part: FrameRange, size: int) -> None:
    spec = TensorSpec(bytes(32), DType.U8, 2, 10)
    with pytest.raises(InvalidInput):
        encode_frame(spec, part, bytes(size))

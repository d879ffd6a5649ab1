"""A base is assembled from ranges of other tensors, whole or in part, cast where types differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    ZERO_ID,
    BasePlan,
    BaseSegment,
    DType,
    InvalidInput,
    TensorSpec,
    assemble,
    cast,
    decode_frame,
    encode_frame,
    parse_header,
    split_frames,
    tensor_id,
)
from support.codecs.frames import make_pair

A, _ = make_pair(DType.F32, 500, seed=1)
B, _ = make_pair(DType.BF16, 300, seed=2)
TENSORS = {tensor_id(A): A, tensor_id(B): B}
CASTING = BasePlan(
    (
        BaseSegment(tensor_id(A), DType.F32, 100, 250),
        BaseSegment(ZERO_ID, DType.BF16, 0, 17),
        BaseSegment(tensor_id(B), DType.BF16, 3, 200),
        BaseSegment(tensor_id(A), DType.F32, 0, 1),
    ),
    is_cast=True,
)
COUNT = 250 + 17 + 200 + 1


def read(tensor: bytes, first_byte: int, out: memoryview) -> None:
    data = TENSORS[tensor][first_byte : first_byte + len(out)]
    assert len(data) == len(out)
    out[:] = data


def whole_base() -> bytes:
    first, last = bytearray(500), bytearray(2)
    cast(A[400:1400], DType.F32, DType.BF16, memoryview(first))
    cast(A[:4], DType.F32, DType.BF16, memoryview(last))
    return bytes(first) + bytes(34) + B[6:406] + bytes(last)


@given(bounds=st.tuples(st.integers(0, COUNT), st.integers(0, COUNT)))
def test_any_part_of_a_base_is_assembled_alone(bounds: tuple[int, int]) -> None:
    start, end = sorted(bounds)
    out = bytearray(b"\xff" * 2 * (end - start))
    assemble(CASTING, DType.BF16, start, end - start, read, memoryview(out))
    assert out == whole_base()[2 * start : 2 * end]


def test_a_long_segment_is_cast_in_steps() -> None:
    count = (1 << 20) + 5
    source, _ = make_pair(DType.F32, count)
    sizes: list[int] = []

    def read_long(tensor: bytes, first_byte: int, out: memoryview) -> None:
        sizes.append(len(out))
        out[:] = source[first_byte : first_byte + len(out)]

    plan = BasePlan((BaseSegment(bytes(31) + b"a", DType.F32, 0, count),), is_cast=True)
    out, whole = bytearray(2 * count), bytearray(2 * count)
    assemble(plan, DType.F16, 0, count, read_long, memoryview(out))
    cast(source, DType.F32, DType.F16, memoryview(whole))
    assert out == whole
    assert sizes == [4 << 20, 20]


def test_the_tensors_to_read_are_named_once_and_zeros_never() -> None:
    assert CASTING.base_ids() == (tensor_id(A), tensor_id(B))


@pytest.mark.parametrize(("start", "count", "size"), [(-1, 5, 10), (0, COUNT + 1, 938), (0, 5, 9)])
def test_a_part_outside_of_the_plan_is_refused(start: int, count: int, size: int) -> None:
    with pytest.raises(InvalidInput):
        assemble(CASTING, DType.BF16, start, count, read, memoryview(bytearray(size)))


def test_a_frame_carries_its_plan() -> None:
    base = whole_base()
    source = bytes(byte ^ (i % 2 == 0) for i, byte in enumerate(base))
    spec = TensorSpec(tensor_id(source), DType.BF16, 1, COUNT)
    # Enough elements for the delta to save more than its four segments take.
    (part,) = split_frames(spec)
    frame = encode_frame(spec, part, source, base, CASTING, "fm_delta")
    header = parse_header(frame)
    assert header.base == CASTING
    assert decode_frame(frame, base) == source


@pytest.mark.parametrize(
    "plan",
    [
        BasePlan((), is_cast=False),
        BasePlan((BaseSegment(tensor_id(A), DType.F32, 0, 9),), is_cast=False),
        BasePlan((BaseSegment(tensor_id(A), DType.F32, 0, 10),), is_cast=True),
        BasePlan((BaseSegment(tensor_id(A), DType.I32, 0, 10),), is_cast=True),
        BasePlan((BaseSegment(b"short", DType.F32, 0, 10),), is_cast=False),
        BasePlan((BaseSegment(tensor_id(b"x"), DType.F32, 0, 10),), is_cast=False),
    ],
)
def test_an_encoder_refuses_a_plan_that_no_decoder_takes(plan: BasePlan) -> None:
    spec = TensorSpec(tensor_id(b"x"), DType.F32, 1, 10)
    (part,) = split_frames(spec)
    with pytest.raises(InvalidInput):
        encode_frame(spec, part, bytes(40), bytes(40), plan, "fm_delta")

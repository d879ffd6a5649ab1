"""A base that is scaled and rounded to FP8: to the last bit, in any range, and found by itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    BasePlan,
    BaseSegment,
    CodecError,
    DType,
    FrameRange,
    TensorSpec,
    assemble,
    encode_frame,
    open_frame,
    parse_header,
    split_frames,
    tensor_id,
    tensor_spec,
)
from deltahub.codecs.frames.base_choice import BaseTensor, TensorInfo
from deltahub.codecs.frames.base_plan import slice_plan
from deltahub.codecs.frames.layouts.scales import fp8_values
from deltahub.codecs.frames.layouts.search import LayoutSearch
from deltahub.codecs.frames.views import Scaled
from deltahub.codecs.frames.views.scaled import scale
from deltahub.codecs.ids import ZERO_ID
from support.models import tiny_models as tiny

TORCH = {DType.F8_E4M3: torch.float8_e4m3fn, DType.F8_E5M2: torch.float8_e5m2}
BOTH = pytest.mark.parametrize("dtype", list(TORCH), ids=lambda dtype: dtype.name)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def expected_codes(words: np.ndarray, factors: np.ndarray, dtype: DType) -> np.ndarray:
    """By doubles, which hold the products exactly, and the middles between all numbers."""
    values = fp8_values(dtype)[:128].astype(np.float64)
    finite = values[np.isfinite(values)]
    middles = (finite[1:] + finite[:-1]) / 2
    with np.errstate(invalid="ignore"):
        product = words.view(np.float32).astype(np.float64) * factors.view(np.float32)
    magnitude = np.abs(product)
    up = np.searchsorted(middles, magnitude, "left")  # a tie rounds down
    is_tie = np.isin(magnitude, middles)
    code = np.where(is_tie & (up % 2 == 1), up + 1, up)
    code = np.where(np.isnan(product), 0x7F, code)
    return (code | (words >> 31) << 7).astype(np.uint8)


@BOTH
def test_every_bf16_number_is_rounded_to_the_nearest(dtype: DType) -> None:
    words = np.arange(1 << 16, dtype=np.uint32) << 16
    for factor in (1.0, 2.0**-64, 2.0**64, 0.1, 3.14159, 448.0, 1 / 448, 1.9999999):
        factors = np.full(len(words), np.float32(factor)).view(np.uint32)
        with np.errstate(over="ignore"):
            expected = expected_codes(words, factors, dtype)
        assert np.array_equal(scale(words, factors, dtype), expected), factor


@BOTH
def test_ties_and_neighbours_of_ties_are_rounded_as_torch_rounds_them(dtype: DType) -> None:
    values = fp8_values(dtype)
    finite = np.sort(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2
    words = middles.astype(np.float32).view(np.uint32)
    words = np.concatenate([words - 1, words, words + 1])
    ones = np.ones(len(words), np.float32).view(np.uint32)
    largest = torch.finfo(TORCH[dtype]).max
    floats = torch.from_numpy(words.view(np.float32).copy()).clamp(-largest, largest)
    rounded = floats.to(TORCH[dtype]).view(torch.uint8)
    assert np.array_equal(scale(words, ones, dtype), rounded.numpy())


@BOTH
@given(data=st.data())
def test_any_words_are_rounded_to_the_nearest(dtype: DType, data: st.DataObject) -> None:
    word = st.integers(0, (1 << 32) - 1)
    words = np.array(data.draw(st.lists(word, min_size=1, max_size=20)), np.uint32)
    exponents = st.integers(127 - 64, 127 + 64)
    mantissas = st.integers(0, (1 << 23) - 1)
    factors = np.array(
        [data.draw(exponents) << 23 | data.draw(mantissas) for _ in words], np.uint32
    )
    with np.errstate(over="ignore"):
        expected = expected_codes(words, factors, dtype)
    assert np.array_equal(scale(words, factors, dtype), expected)


@given(data=st.data())
def test_the_parts_of_a_plan_give_the_whole_base(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    group_rows = data.draw(st.integers(1, 10))
    group_columns = data.draw(st.integers(1, columns))
    down, across = -(-rows // group_rows), -(-columns // group_columns)
    multipliers = np.geomspace(0.1, 50, down * across).astype("<f4")
    source = np.linspace(-3, 3, rows * columns).astype("<f4")
    of_each = multipliers[
        (np.arange(rows)[:, None] // group_rows) * across
        + np.arange(columns)[None, :] // group_columns
    ].reshape(-1)
    expected = scale(source.view(np.uint32), of_each.view(np.uint32), DType.F8_E4M3).tobytes()
    view = Scaled(columns, group_rows, group_columns, multipliers.tobytes())
    segment = BaseSegment(tensor_id(source.tobytes()), DType.F32, 0, len(source))
    plan = BasePlan((segment,), is_cast=True, view=view)
    assert plan.fault(bytes(31) + b"t", DType.F8_E4M3, len(source)) is None

    def read(_: bytes, first: int, out: memoryview) -> None:
        out[:] = source.tobytes()[first : first + len(out)]

    found = bytearray()
    while len(found) < len(source):
        n = data.draw(st.integers(1, len(source) - len(found)))
        part = slice_plan(plan, DType.F8_E4M3, len(found), n)
        assert part.fault(bytes(31) + b"t", DType.F8_E4M3, n) is None
        piece = bytearray(n)
        assemble(part, DType.F8_E4M3, 0, n, read, memoryview(piece))
        found += piece
    assert found == expected


# -- found ---------------------------------------------------------------------------------------


def to_fp8(
    tensor: torch.Tensor, rows: int, columns: int, dtype: torch.dtype = torch.float8_e4m3fn,
    scale_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:  # fmt: skip
    """As converters do: by the largest number of each group of rows x columns."""
    made = torch.empty(tensor.shape, dtype=dtype)
    flat, out = tensor.reshape(-1, tensor.shape[-1]), made.view(-1, tensor.shape[-1])
    largest = torch.finfo(dtype).max
    for i in range(0, flat.shape[0], rows):
        for j in range(0, flat.shape[1], columns):
            block = flat[i : i + rows, j : j + columns].float()
            by = (block.abs().max() / largest).to(scale_dtype).float()
            out[i : i + rows, j : j + columns] = (block / by).clamp(-largest, largest).to(dtype)
    return made


def predicted(
    base: dict[str, torch.Tensor], name: str, fp8: torch.Tensor
) -> tuple[float, BasePlan]:
    """The share of elements that the found base has right, and its plan."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3"}
    data = {tensor_id(raw(each)): raw(each) for each in base.values()}

    def read(tensor: bytes, first: int, out: memoryview) -> None:
        out[:] = data[tensor][first : first + len(out)]

    search = LayoutSearch(
        [BaseTensor(n, names[t.dtype], tuple(t.shape), tensor_id(raw(t))) for n, t in base.items()],
        read,
    )
    dtype = next(ours for ours, theirs in TORCH.items() if theirs is fp8.dtype)
    info = TensorInfo(name, dtype.name, tuple(fp8.shape))
    codes = raw(fp8)
    (plan,) = search.find(info, lambda first, out: _fill(out, codes, first))
    assert plan.fault(bytes(31) + b"t", dtype, info.count) is None
    out = bytearray(info.count)
    assemble(plan, dtype, 0, info.count, read, memoryview(out))
    return float((np.frombuffer(out, np.uint8) == np.frombuffer(codes, np.uint8)).mean()), plan


def _fill(out: memoryview, data: bytes, first: int) -> None:
    out[:] = data[first : first + len(out)]


@pytest.mark.parametrize(
    ("rows", "columns", "group"),
    [(192, 384, (192, 384)), (1, 384, (1, 384)), (128, 128, (128, 128))],
    ids=["tensor", "rows", "blocks"],
)
@pytest.mark.parametrize("dtype", TORCH.values(), ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_scales_are_found(
    rows: int, columns: int, group: tuple[int, int], dtype: torch.dtype, scale_dtype: torch.dtype
) -> None:
    base = {"up.weight": tiny.base()["up.weight"].to(torch.bfloat16)}
    fp8 = to_fp8(base["up.weight"], rows, columns, dtype, scale_dtype)
    share, plan = predicted(base, "up.weight", fp8)
    assert share > 0.98
    assert isinstance(plan.view, Scaled)
    assert (plan.view.group_rows, plan.view.group_columns) == group
    tuned = tiny.finetune(1e-5)["up.weight"].to(torch.bfloat16)
    assert predicted(base, "up.weight", to_fp8(tuned, rows, columns, dtype, scale_dtype))[0] > 0.75


def test_stacked_and_fused_parts_are_scaled_too() -> None:
    experts = [tiny.base(seed)["up.weight"] for seed in range(3)]
    base = {f"experts.{i}.w{j}": half.contiguous() for i, e in enumerate(experts)
            for j, half in ((1, e[:96]), (3, e[96:]))}  # fmt: skip
    share, plan = predicted(base, "experts.gate_up", to_fp8(torch.stack(experts), 192, 384))
    assert share > 0.98
    assert len(plan.base_ids()) == 6


def test_fused_fp8_parts_of_an_fp8_base_are_found() -> None:
    halves = tiny.base()["up.weight"].split(96)
    base = {f"w{i}": to_fp8(half, 1, 384) for i, half in enumerate(halves)}
    share, plan = predicted(base, "w01", to_fp8(tiny.base()["up.weight"], 1, 384))
    assert share == 1
    assert plan.view is None
    assert not plan.is_cast


def test_unscaled_casts_are_found() -> None:
    weight = tiny.base()["up.weight"].to(torch.bfloat16)
    for dtype in TORCH.values():
        assert predicted({"w": weight}, "w", weight.to(dtype))[0] == 1


# -- in frames -----------------------------------------------------------------------------------

WORDS = tiny.base()["down.weight"].to(torch.bfloat16)
SHAPE = tuple(WORDS.shape)


def plan_of(view: Scaled, count: int = WORDS.numel(), dtype: DType = DType.BF16) -> BasePlan:
    return BasePlan((BaseSegment(tensor_id(raw(WORDS)), dtype, 0, count),), is_cast=True, view=view)


def good_view() -> Scaled:
    by = 448 / WORDS.float().abs().amax(1)
    return Scaled(SHAPE[1], 1, SHAPE[1], by.numpy().astype("<f4").tobytes())


def frame_of(codes: bytes, plan: BasePlan) -> bytes:
    spec = tensor_spec(tensor_id(codes), "F8_E4M3", SHAPE)
    (part,) = split_frames(spec)
    base = bytearray(len(codes))
    source = raw(WORDS)
    assemble(plan, spec.dtype, 0, spec.count, lambda _, f, o: _fill(o, source, f), memoryview(base))
    return encode_frame(spec, part, codes, base, plan, "delta")


def test_a_frame_of_a_cast_of_the_base_has_little_but_its_scales() -> None:
    tuned = raw(to_fp8(WORDS, 1, SHAPE[1]))
    frame = frame_of(tuned, plan_of(good_view()))
    assert frame[4] == 3
    assert len(frame) < 4 * SHAPE[0] + 0.1 * len(tuned)
    view, body = open_frame(frame)
    header = view.header
    assert header.base is not None
    assert header.base.view == good_view()
    base, out = bytearray(header.size_bytes), bytearray(header.size_bytes)
    read = lambda _, first, into: _fill(into, raw(WORDS), first)  # noqa: E731
    assemble(header.base, header.dtype, 0, header.count, read, memoryview(base))
    view.decode_into(0, header.n_blocks, body, base, memoryview(out))
    assert out == tuned
    for cut in (1, 4, 40, 200):
        with pytest.raises(CodecError):
            parse_header(frame[: header.header_length - cut])


ONE = np.float32(1).tobytes()


@pytest.mark.parametrize(
    ("view", "dtype"),
    [
        (Scaled(SHAPE[1], 0, SHAPE[1], ONE), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], 0, ONE), DType.F8_E4M3),
        (Scaled(0, SHAPE[0], 1, ONE), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], SHAPE[1] + 1, ONE), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], SHAPE[1], b""), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], SHAPE[1], ONE * 2), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], SHAPE[1], ONE, 1), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], SHAPE[1], np.float32(-1).tobytes()), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], SHAPE[1], np.float32(2.0**-65).tobytes()), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], SHAPE[1], np.float32(2.0**65).tobytes()), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], SHAPE[1], np.float32(np.nan).tobytes()), DType.F8_E4M3),
        (Scaled(SHAPE[1], SHAPE[0], SHAPE[1], ONE), DType.BF16),
    ],
)  # fmt: skip
def test_a_wrong_view_is_refused(view: Scaled, dtype: DType) -> None:
    good = Scaled(SHAPE[1], SHAPE[0], SHAPE[1], ONE)
    assert plan_of(good).fault(bytes(31) + b"t", DType.F8_E4M3, WORDS.numel()) is None
    assert plan_of(view).fault(bytes(31) + b"t", dtype, WORDS.numel()) is not None


def test_what_cannot_be_scaled_is_refused() -> None:
    good = Scaled(SHAPE[1], SHAPE[0], SHAPE[1], ONE)
    count = WORDS.numel()
    for dtype in (DType.F64, DType.I16, DType.F8_E5M2):
        fault = plan_of(good, dtype=dtype).fault(bytes(31) + b"t", DType.F8_E4M3, count)
        assert fault is not None
    zeros = BasePlan((BaseSegment(ZERO_ID, DType.F8_E4M3, 0, count),), is_cast=False, view=good)
    assert zeros.fault(bytes(31) + b"t", DType.F8_E4M3, count) is not None


def test_too_many_groups_are_refused() -> None:
    n = (1 << 16) + 1
    segment = BaseSegment(tensor_id(b""), DType.BF16, 0, n)
    plan = BasePlan((segment,), is_cast=True, view=Scaled(1, 1, 1, ONE * n))
    assert plan.fault(bytes(31) + b"t", DType.F8_E4M3, n) is not None
    spec, part = TensorSpec(bytes(31) + b"t", DType.F8_E4M3, n, 1), FrameRange(0, n, n, 1)
    with pytest.raises(CodecError):
        encode_frame(spec, part, bytes(n), bytes(n), plan, "fm_delta")

"""Words with trailing zero bits, as after conversion from a shorter dtype: fm_delta version 2."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import (
    BlockMode,
    CorruptFrame,
    DType,
    FrameView,
    Geometry,
    decode_frame,
    encode_frame,
    tensor_id,
)
from deltahub.codecs._native import FmDeltaDecoder, FmDeltaEncoder, common_stride
from deltahub.codecs.fm_delta.codec import plan
from deltahub.codecs.fm_delta.low_rank.search import find_product
from deltahub.codecs.frames import TensorSpec, split_frames
from deltahub.codecs.protocol import Effort
from deltahub.codecs.reference import fm_delta
from deltahub.codecs.reference.coder import Context, Table
from deltahub.codecs.reference.fm_delta import BlockShape, Model, SideValues, WeightDecaySteps
from deltahub.codecs.reference.fm_delta_model import ALPHABET
from deltahub.codecs.reference.fm_delta_prelude import column_sequences
from deltahub.codecs.reference.words import Words
from deltahub.codecs.words import WORD_KINDS
from support.codecs.deltas import (
    as_words,
    decode,
    encode,
    fine_tune,
    modes,
    scaled_fine_tune,
    special_words,
    stored_bytes,
    with_stride,
)
from support.codecs.frames import forge_header, plan_on
from support.codecs.kernels import NAMES, delta_outcome, is_delta_prelude, running
from support.codecs.reference_models import make_tensor, tables_for
from support.models import tiny_models as tiny
from support.models.tiny_lora import merged_lora

every_dtype = pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)
every_effort = pytest.mark.parametrize("effort", list(Effort), ids=lambda effort: effort.name)
SHORT = {DType.BF16: torch.bfloat16, DType.F16: torch.float16}
every_short = pytest.mark.parametrize("short", list(SHORT), ids=lambda dtype: dtype.name)


def most_stride(dtype: DType) -> int:
    words = Words.of(dtype)
    return words.mantissa_bits if words.is_float else words.bits - 1


def frame_of(
    dtype: DType, rows: int, source: bytes, base: bytes, effort: Effort, codec: str = "auto"
) -> bytes:
    """The frame, which must be the same with all kernels."""
    spec = TensorSpec(tensor_id(source), dtype, rows, len(source) // dtype.itemsize // rows)
    (part,) = split_frames(spec)
    frames = set()
    for name in NAMES:
        with running(name):
            near = plan_on(base, dtype)
            frames.add(encode_frame(spec, part, source, base, near, codec, 1, effort))
    (frame,) = frames
    assert decode_frame(frame, base) == source
    return frame


def version(frame: bytes) -> tuple[str, int]:
    header = FrameView.parse(frame).header
    return header.codec, header.codec_version


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Geometry, int, bytes, bytes]:
    """(geometry, least stride, fine-tune, base)"""
    dtype = draw(st.sampled_from(list(DType)))
    rows, columns = draw(st.sampled_from([1, 3, 40])), draw(st.sampled_from([1, 31, 70, 1050]))
    parts = draw(st.sampled_from([1, 2])) if columns > 1 else 1
    seed, stride = draw(st.integers(0, 99)), draw(st.integers(0, most_stride(dtype)))
    source, base = fine_tune(dtype, rows * columns, seed, draw(st.sampled_from([1e-4, 1e-2, 1.0])))
    if draw(st.booleans()):  # words of every kind among them, so that signs change, too
        special, random = special_words(dtype), np.random.default_rng(seed)
        mixed = np.frombuffer(source, special.dtype).copy()
        at = random.random(mixed.size) < 0.1
        mixed[at] = random.choice(special, int(at.sum()))
        source = mixed.tobytes()
    geometry = Geometry(dtype, rows, columns, 1 if parts > 1 else min(rows, 30), parts)
    return geometry, stride, with_stride(source, dtype, stride), with_stride(base, dtype, stride)


@settings(max_examples=80)
@given(pair=pairs(), effort=st.sampled_from(list(Effort)))
def test_words_with_a_stride_come_back_by_all_kernels_alike(
    pair: tuple[Geometry, int, bytes, bytes], effort: Effort
) -> None:
    geometry, stride, source, base = pair
    bodies = []
    for name in NAMES:
        with running(name):
            bodies.append(encode(geometry, source, base, effort=effort))
    body = bodies[0]
    assert all(each == body for each in bodies)
    for name in NAMES:
        with running(name):
            assert decode(geometry, body, base) == source
    own = common_stride(WORD_KINDS[geometry.dtype], source, base)
    assert own >= stride or not (any(source) or any(base))
    assert body.version == (2 if body.prelude and own > 0 else 1)
    if not body.prelude:
        return
    model = fm_delta.parse_prelude(
        Words.of(geometry.dtype), geometry.rows, geometry.columns, body.prelude, body.version
    )
    assert model.zero_bits == own
    for index, (mode, stored) in enumerate(body.blocks):
        begin, end = geometry.block_bytes(index)
        if mode == BlockMode.CODED and end - begin < 1000:
            shape = BlockShape.of(geometry, index)
            assert fm_delta.decode_block(model, stored, base[begin:end], shape) == source[begin:end]


def test_the_stride_is_what_all_words_have() -> None:
    kind = WORD_KINDS[DType.F32]
    words = np.full(5000, 0x3F80_0000, "<u4")
    assert common_stride(kind, words.tobytes(), words.tobytes()) == 23  # the exponent is kept
    for at, digit, stride in [(4999, 13, 13), (0, 1, 1), (2500, 0, 0)]:
        other = words.copy()
        other[at] |= 1 << digit
        assert common_stride(kind, words.tobytes(), other.tobytes()) == stride
        assert common_stride(kind, other.tobytes(), words.tobytes()) == stride
    zeros = bytes(4000)
    assert common_stride(kind, zeros, zeros) == 0
    assert common_stride(kind, zeros, words[:1000].tobytes()) == 23
    integers = np.full(9, -(2**31), "<i4").tobytes()
    assert common_stride(WORD_KINDS[DType.I32], integers, bytes(36)) == 31
    with pytest.raises(ValueError, match="another size"):
        common_stride(kind, zeros, zeros[4:])
    with pytest.raises(ValueError, match="whole number"):
        common_stride(kind, b"123", b"123")


@every_effort
def test_a_frame_without_a_stride_is_of_version_1(effort: Effort) -> None:
    source, base = scaled_fine_tune(DType.F32, 64, 100)
    assert version(frame_of(DType.F32, 64, source, base, effort)) == ("fm_delta", 1)
    # And so is a frame without tables, whatever the trailing bits of its words.
    even = with_stride(base, DType.F32, 16)
    assert version(frame_of(DType.F32, 64, even, even, effort)) == ("fm_delta", 1)


def wide(words: bytes, short: DType) -> bytes:
    """The same numbers in F32."""
    numbers = np.frombuffer(words, "<u2")
    if short is DType.BF16:
        return (numbers.astype("<u4") << 16).tobytes()
    return numbers.view("<f2").astype("<f4").tobytes()


def raw(tensor: torch.Tensor, dtype: DType) -> bytes:
    return tensor.to(SHORT[dtype]).contiguous().view(torch.uint8).numpy().tobytes()


@every_effort
@every_short
@pytest.mark.parametrize("kind", ["a fine-tune", "a merged adapter"])
def test_trained_weights_take_no_more_in_a_wider_dtype(
    short: DType, effort: Effort, kind: str
) -> None:
    if kind == "a fine-tune":
        tensor, base = tiny.finetune(1e-3)["down.weight"], tiny.base()["down.weight"]
    else:
        tensor, base = merged_lora()
    pair = raw(tensor, short), raw(base, short)
    sizes = len(frame_of(short, len(tensor), *pair, effort))
    frame = frame_of(DType.F32, len(tensor), *(wide(each, short) for each in pair), effort)
    assert version(frame) == ("fm_delta", 2)
    assert len(frame) < 1.1 * sizes


@every_short
def test_a_product_is_found_in_the_shorter_words(short: DType) -> None:
    tensor, base = merged_lora()
    words, near = (wide(raw(each, short), short) for each in (tensor, base))
    geometry = Geometry(DType.F32, *tensor.shape, tensor.shape[0], 1)
    encoder = plan(geometry, memoryview(words), memoryview(near), Effort.DEFAULT)
    shape = geometry.rows, geometry.columns
    model = fm_delta.parse_prelude(Words.of(DType.F32), *shape, encoder.prelude, encoder.version)
    assert model.low_rank is not None
    assert model.zero_bits == (16 if short is DType.BF16 else 13)


def test_a_product_is_found_where_no_shorter_dtype_has_all_words() -> None:
    """As from a BF16 base merged in TF32, whose range is too large for F16."""
    tensor, base = merged_lora()
    words = with_stride(as_words(tensor.numpy(), DType.F32).tobytes(), DType.F32, 13)
    near = wide(raw(base, DType.BF16), DType.BF16)
    geometry = Geometry(DType.F32, *tensor.shape, tensor.shape[0], 1)
    encoder = plan(geometry, memoryview(words), memoryview(near), Effort.DEFAULT)
    assert common_stride(WORD_KINDS[DType.F32], words, near) == 13
    shape = geometry.rows, geometry.columns
    model = fm_delta.parse_prelude(Words.of(DType.F32), *shape, encoder.prelude, encoder.version)
    assert model.low_rank is not None


def test_classes_are_those_of_rounded_words() -> None:
    """Also in rows other than weight-decay rows, and if rounding carries into the exponent."""
    words, n = Words.of(DType.F32), 64
    base = np.full(n, 0x3F7F_FFFF, "<u4")
    source = np.full(n, 0x3F81_0000, "<u4")
    source[::3] = 0x3F83_0000
    shape, sides = BlockShape(1, n), SideValues((), (0,), ())
    model = Model(
        words,
        (Table(8, ()), Table(8, ())),
        tuple(Context(0, z) for z in range(7)),
        offset=4 * 127 + 1,
        decay_steps=WeightDecaySteps(1, Context(1, 0), Context(1, 0), (0, 0)),
        zero_bits=16,
    )
    pair = source.tobytes(), base.tobytes()
    sequences = column_sequences(model)
    sequences += fm_delta.block_sequences(model, *pair, shape, sides)
    model = replace(model, tables=tables_for(ALPHABET, sequences, 2, 8))
    stream = fm_delta.encode_block(model, *pair, shape, sides)[4:]
    prelude = fm_delta.write_prelude(model)
    made = delta_outcome(DType.F32, (1, n), prelude, stream, base.tobytes(), shape, 2)
    assert made == source.tobytes()


def test_a_stride_of_a_digit_costs_no_product() -> None:
    random, side = np.random.default_rng(0), 96
    base = as_words(random.standard_normal((side, side)) * 0.02, DType.F32)
    step = random.standard_normal((side, 1)) @ random.standard_normal((1, side)) * 2e-3
    source = as_words(base.view("<f4").reshape(side, side) + step, DType.F32)
    even = [with_stride(each.tobytes(), DType.F32, 1) for each in (source, base)]
    words = [np.frombuffer(each, "<u4") for each in even]
    product = find_product(DType.F32, words[0], words[1], side, side)
    assert product is not None
    found = product.low_rank
    factors = found.left.tobytes(), found.right.tobytes(), found.floor, found.is_rounded
    before = FmDeltaEncoder(WORD_KINDS[DType.F32], *even, side, side, 2, *factors)
    body = encode(Geometry(DType.F32, side, side, side, 1), *even)
    assert body.version == 2
    assert stored_bytes(body) < len(before.prelude) + len(before.encode(*even, 0, 0, side, side))


@every_effort
@pytest.mark.parametrize(
    ("dtype", "short"), [(DType.F64, DType.F32), (DType.BF16, DType.F8_E4M3)], ids=str
)
def test_other_wider_dtypes_take_hardly_more(dtype: DType, short: DType, effort: Effort) -> None:
    count = 100 * 300
    words = [np.frombuffer(each, f"<u{short.itemsize}") for each in fine_tune(short, count)]
    if short is DType.F32:
        pair = [each.view("<f4").astype("<f8").tobytes() for each in words]
    else:
        every = np.arange(256, dtype=np.uint8)
        table = torch.from_numpy(every).view(torch.float8_e4m3fn).to(torch.bfloat16)
        pair = [table.view(torch.int16).numpy().view("<u2")[each].tobytes() for each in words]
    frame = frame_of(dtype, 100, pair[0], pair[1], effort)
    own = len(frame_of(short, 100, words[0].tobytes(), words[1].tobytes(), effort))
    assert version(frame) == ("fm_delta", 2)
    # What is subnormal in eight bits is not in sixteen: there it has more steps on its way.
    assert len(frame) < (1.1 if short is DType.F32 else 1.3) * own


def test_one_native_call_and_all_parts_make_the_same_frame() -> None:
    source, base = (wide(each, DType.BF16) for each in scaled_fine_tune(DType.BF16, 300, 500))
    frame = frame_of(DType.F32, 300, source, base, Effort.FAST)
    assert frame == frame_of(DType.F32, 300, source, base, Effort.FAST, "fm_delta")
    assert version(frame) == ("fm_delta", 2)


def test_a_version_is_that_of_its_prelude() -> None:
    plain = scaled_fine_tune(DType.F32, 40, 100)
    even = [with_stride(each, DType.F32, 12) for each in plain]
    for (source, base), own, other in ((plain, 1, 2), (even, 2, 1)):
        frame = frame_of(DType.F32, 40, source, base, Effort.FAST)
        assert version(frame) == ("fm_delta", own)
        with pytest.raises(CorruptFrame, match="fm_delta prelude"):
            decode_frame(forge_header(frame, codec_version=other), base)


def test_version_2_has_a_prelude() -> None:
    """Otherwise a frame without coded blocks would have two forms."""
    base = with_stride(fine_tune(DType.F32, 4000)[1], DType.F32, 16)
    frame = frame_of(DType.F32, 1, base, base, Effort.FAST)
    with pytest.raises(CorruptFrame, match="fm_delta prelude"):
        decode_frame(forge_header(frame, codec_version=2), base)


@every_dtype
def test_a_stride_and_its_shifts_have_limits(dtype: DType) -> None:
    words, most = Words.of(dtype), most_stride(dtype)
    tensor = make_tensor(Geometry(dtype, 2, 30, 2, 1))

    def is_sound(model: Model) -> bool:
        return is_delta_prelude(dtype, (2, 30), fm_delta.write_prelude(model), 2)

    for stride in range(words.bits + 1):
        model = Model(words, tensor.model.tables[:1], (Context(0, 0),), zero_bits=stride)
        assert is_sound(model) == (1 <= stride <= most)
    for shift in (words.bits - most - 1, words.bits - most):
        model = Model(words, tensor.model.tables[:1], (Context(0, shift),), zero_bits=most)
        assert is_sound(model) == (shift < words.bits - most)
    prelude = fm_delta.write_prelude(model)
    for unknown in (0, 3):
        with pytest.raises(ValueError, match="no such version"):
            FmDeltaDecoder(WORD_KINDS[dtype], prelude, 2, 30, unknown)


@every_dtype
@pytest.mark.parametrize("special", [False, True])
def test_any_base_makes_the_same_words_by_all_kernels(dtype: DType, special: bool) -> None:
    """Also one that has the digits which the frame's own lacks: predicted, and moved."""
    for stride in {1, most_stride(dtype)}:
        tensor = make_tensor(
            Geometry(dtype, 3, 70, 3, 1),
            special=special,
            staircase_bits=min(Words.of(dtype).mantissa_bits, 3),
            rank=2 if dtype in (DType.BF16, DType.F16, DType.F32) else 0,
            stride=stride,
        )
        (shape,), (sides,), model = tensor.shapes, tensor.sides, tensor.model
        stream = fm_delta.encode_block(model, tensor.source, tensor.base, shape, sides)[4:]
        prelude, noise = fm_delta.write_prelude(model), np.random.default_rng(stride)
        other: npt.NDArray[np.uint8] = noise.integers(0, 256, len(tensor.base), dtype=np.uint8)
        for base, expected in ((tensor.base, tensor.source), (other.tobytes(), None)):
            made = delta_outcome(dtype, (3, 70), prelude, stream, base, shape, 2)
            assert made == expected or expected is None  # other classes may not fit the stream
            assert made is None or with_stride(made, dtype, stride) == made


def test_modes_of_blocks_are_as_ever() -> None:
    source, base = (wide(each, DType.BF16) for each in fine_tune(DType.BF16, 90 * 60))
    noise = with_stride(np.random.default_rng(3).bytes(len(source) // 3), DType.F32, 2)
    third = len(source) // 3
    source = source[:third] + base[third : 2 * third] + noise
    body = encode(Geometry(DType.F32, 90, 60, 30, 1), source, base)
    assert modes(body)[:2] == [BlockMode.CODED, BlockMode.UNCHANGED]

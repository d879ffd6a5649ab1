"""Whatever encoders and the reference write, the kernels decode, in whatever order threads run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import BlockMode, DType, Geometry
from deltahub.codecs.protocol import Effort
from support.codecs.coded_frames import (
    CodedFrame,
    all_parts,
    delta_frame,
    float_frame,
    made_frame,
    near_its_predictions,
)
from support.codecs.deltas import encode_alone, fine_tune, modes, special_words
from support.codecs.reference_models import make_tensor
from support.codecs.small_frames import SMALL_FRAMES
from support.cuda.decoding import decode_opened, opened
from support.cuda.kernels import EmulatedDevice

FLOATS = [dtype for dtype in DType if dtype.is_float]
WITH_PRODUCT = [DType.BF16, DType.F16, DType.F32]
SEEDS = st.integers(0, 2**32 - 1)


def assert_decodes(case: CodedFrame, seed: int = 0) -> None:
    assert decode_opened(EmulatedDevice(seed), [opened(case)], [case.base]) == [case.source]


@st.composite
def geometries(draw: st.DrawFn, dtypes: list[DType], most: int = 700) -> Geometry:
    rows = draw(st.integers(1, 40))
    columns = draw(st.integers(1, max(most // rows, 1)))
    if draw(st.booleans()):
        return Geometry(draw(st.sampled_from(dtypes)), rows, columns, draw(st.integers(1, rows)), 1)
    width = draw(st.integers(1, columns))
    return Geometry(draw(st.sampled_from(dtypes)), rows, columns, 1, -(-columns // width))


@pytest.mark.parametrize("name", SMALL_FRAMES)
@pytest.mark.parametrize("seed", [1, 2])
def test_frames_of_the_encoders(name: str, seed: int) -> None:
    assert_decodes(SMALL_FRAMES[name], seed)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("count", [1, 31, 32, 33, 127, 128, 129, 3000])
def test_floats_of_any_number(dtype: DType, count: int) -> None:
    assert_decodes(float_frame(dtype, count))


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("count", [1, 31, 32, 33, 127, 128, 129, 3000])
def test_differences_of_any_number(dtype: DType, count: int) -> None:
    source, base = fine_tune(dtype, count)
    assert_decodes(delta_frame(Geometry(dtype, 1, count, 1, 1), source, base))


@settings(max_examples=60)
@given(geometry=geometries(FLOATS), seed=SEEDS, words=st.data())
def test_floats_of_any_shape(geometry: Geometry, seed: int, words: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    source = bytearray(fine_tune(geometry.dtype, geometry.count, seed)[0])
    n_special = words.draw(st.integers(0, 3))
    chosen = random.choice(special_words(geometry.dtype), n_special)
    array = np.frombuffer(source, chosen.dtype)
    array[random.integers(0, geometry.count, n_special)] = chosen
    case = CodedFrame(
        "neuzip_lossless", geometry, bytes(source), None, encode_alone(geometry, bytes(source))
    )
    assert_decodes(case, seed)


@settings(max_examples=60)
@given(
    geometry=geometries(list(DType)),
    seed=SEEDS,
    effort=st.sampled_from([Effort.FAST, Effort.DEFAULT]),
)
def test_differences_of_any_shape(geometry: Geometry, seed: int, effort: Effort) -> None:
    source, base = fine_tune(geometry.dtype, geometry.count, seed)
    assert_decodes(delta_frame(geometry, source, base, effort), seed)


@settings(max_examples=60)
@given(
    geometry=geometries(list(DType), most=1200),
    seed=SEEDS,
    parts=st.fixed_dictionaries(
        {
            "special": st.booleans(),
            "rows": st.booleans(),
            "columns": st.booleans(),
            "table_log": st.integers(7, 10),
            "n_classes": st.integers(1, 64),
            "staircase_bits": st.integers(0, 4),
            "rank": st.integers(0, 5),
            "stride": st.integers(0, 6),
        }
    ),
)
def test_models_of_any_parts(geometry: Geometry, seed: int, parts: dict[str, Any]) -> None:
    mantissa_bits = {DType.BF16: 7, DType.F16: 10, DType.F8_E4M3: 3, DType.F8_E5M2: 2}
    most_bits = mantissa_bits.get(geometry.dtype, 23 if geometry.dtype.is_float else 0)
    parts["staircase_bits"] = min(parts["staircase_bits"], most_bits)
    if geometry.dtype in (DType.F8_E4M3, DType.F8_E5M2):
        parts["stride"] = min(parts["stride"], most_bits)
    least = min(geometry.rows, geometry.columns)
    parts["rank"] = min(parts["rank"], least) if geometry.dtype in WITH_PRODUCT else 0
    tensor = near_its_predictions(make_tensor(geometry, seed=seed, **parts))
    assert_decodes(made_frame(tensor), seed)


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", [(20, 40, 7, 1), (4, 1200, 1, 3)], ids=["rows", "parts of rows"])
def test_a_model_with_all_parts(dtype: DType, layout: tuple[int, int, int, int]) -> None:
    case = made_frame(all_parts(Geometry(dtype, *layout)))
    assert BlockMode.CODED in modes(case.body)
    assert_decodes(case, seed=3)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=lambda dtype: dtype.name)
def test_every_pattern_of_sixteen_bits(dtype: DType) -> None:
    # The other two rows make a coded block smaller than a raw one.
    words = np.arange(1 << 16, dtype="<u2")
    often = np.full(1 << 16, 0x3C00 if dtype is DType.F16 else 0x3F80, "<u2")
    source = np.concatenate([words, often, often]).tobytes()
    geometry = Geometry(dtype, 3, 1 << 16, 3, 1)
    case = CodedFrame("neuzip_lossless", geometry, source, None, encode_alone(geometry, source))
    assert modes(case.body) == [BlockMode.CODED]
    assert_decodes(case)


def test_frames_of_all_kinds_are_decoded_by_one_call() -> None:
    cases = list(SMALL_FRAMES.values())
    frames, bases = [opened(case) for case in cases], [case.base for case in cases]
    decoded = decode_opened(EmulatedDevice(seed=5), frames, bases)
    assert decoded == [case.source for case in cases]

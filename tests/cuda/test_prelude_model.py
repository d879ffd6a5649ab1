"""PreludeModel tells what the reference reads in a prelude, with every set of kernels."""

from collections.abc import Iterator

import numpy as np
import pytest

from deltahub.codecs import DType, Geometry
from deltahub.codecs._native import PreludeModel, kernel_names, use_kernels
from deltahub.codecs.kernels import choose_kernels
from deltahub.codecs.words import WORD_KINDS
from support.codecs.coded_frames import all_parts, made_frame

GEOMETRY = Geometry(DType.BF16, 20, 40, 7, 1)


@pytest.fixture(params=kernel_names())
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    use_kernels(request.param)
    yield request.param
    choose_kernels()


@pytest.mark.usefixtures("kernels")
def test_the_model_of_a_prelude_with_all_parts() -> None:
    case = made_frame(all_parts(GEOMETRY))
    expected, kind = case.model, WORD_KINDS[GEOMETRY.dtype]
    found = PreludeModel.of_deltas(kind, case.body.prelude, 20, 40, case.version)
    assert expected.columns is not None
    assert expected.decay_steps is not None
    assert expected.low_rank is not None
    right = np.frombuffer(found.right, "<i2").reshape(-1, GEOMETRY.columns)
    assert right.tolist() == [list(row) for row in expected.low_rank.right]
    assert [bits for _, bits in found.left] == list(expected.low_rank.left_zero_bits)
    assert np.frombuffer(found.column_scales, "<i2").tolist() == list(expected.columns.scales)
    assert np.frombuffer(found.decay_steps, "<u2").tolist() == list(expected.decay_steps.steps)
    classes = [
        (context.table << expected.table_log) * 64 + context.shift for context in expected.classes
    ]
    n_repeated = 64 - len(classes)
    assert np.frombuffer(found.classes, "<u4").tolist() == classes + classes[-1:] * n_repeated
    assert found.last_class == len(classes) - 1
    assert len(found.entries) == 4 * len(expected.tables) << expected.table_log
    assert (found.floor, found.offset) == (expected.low_rank.c0, expected.offset)
    assert found.is_product_rounded


@pytest.mark.usefixtures("kernels")
def test_a_prelude_that_no_encoder_writes_is_refused() -> None:
    case = made_frame(all_parts(GEOMETRY))
    kind = WORD_KINDS[GEOMETRY.dtype]
    with pytest.raises(ValueError, match="no encoder writes such a prelude"):
        PreludeModel.of_deltas(kind, case.body.prelude[:-1], 20, 40, case.version)
    with pytest.raises(ValueError, match="no such version"):
        PreludeModel.of_deltas(kind, case.body.prelude, 20, 40, 3)
    with pytest.raises(ValueError, match="integers have no exponents"):
        PreludeModel.of_floats(WORD_KINDS[DType.I8], b"")

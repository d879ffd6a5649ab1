"""The kernels for GPUs decode, on the CPU; `make test-cuda` tests them in depth."""

import pytest

from support.codecs.small_frames import SMALL_FRAMES
from support.cuda.decoding import decode_opened, opened
from support.cuda.kernels import EmulatedDevice


@pytest.mark.parametrize("name", ["floats, F16, all modes", "BF16, all modes"])
def test_a_frame_of_each_codec_is_decoded_by_kernels(name: str) -> None:
    case = SMALL_FRAMES[name]
    assert decode_opened(EmulatedDevice(), [opened(case)], [case.base]) == [case.source]

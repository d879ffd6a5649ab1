"""A codec takes a few block buffers per thread beside a tensor of any size."""

from pathlib import Path

from support.codecs.measured_memory import (
    BLOCK_MIB,
    MAX_BUFFERS,
    MIB,
    assert_few_buffers,
    extra_mib,
)


def test_a_delta_takes_few_buffers_beside_a_tensor(tmp_path: Path) -> None:
    frame = tmp_path / "frame"
    found = extra_mib(frame, "fm_delta", "FAST", "32")
    # A second copy of the frame would show.
    assert frame.stat().st_size > 2 * MAX_BUFFERS * BLOCK_MIB * MIB
    assert_few_buffers(found, "encode")
    assert_few_buffers(found, "decode")

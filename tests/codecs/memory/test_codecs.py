"""Codecs take a few block buffers per thread besides input and output, for tensors of any size.

The search for a low-rank product takes more memory, because it reads a whole frame at once.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deltahub.codecs._native import kernel_names
from deltahub.codecs.kernels import VARIABLE
from support.codecs.measured_memory import (
    BLOCK_MIB,
    MAX_BUFFERS,
    MIB,
    assert_few_buffers,
    extra_mib,
)

MAX_SEARCH_MIB = 128  # the limit in codecs/spec/fm_delta.md


# fm_delta: tests/codecs/frames/test_codec_memory.py
@pytest.mark.parametrize("codec", ["neuzip_lossless", "raw"])
def test_a_codec_takes_few_buffers_beside_a_tensor(codec: str, tmp_path: Path) -> None:
    frame = tmp_path / "frame"
    found = extra_mib(frame, codec, "FAST", "32")
    assert (
        frame.stat().st_size > 2 * MAX_BUFFERS * BLOCK_MIB * MIB
    )  # a second copy of it would show
    assert_few_buffers(found, "encode")
    assert_few_buffers(found, "decode")


@pytest.mark.parametrize("effort", ["DEFAULT", "MAX"])
def test_what_looked_for_low_rank_decodes_in_few_buffers(effort: str, tmp_path: Path) -> None:
    frame = tmp_path / "frame"
    found = extra_mib(frame, "fm_delta", effort, "8", "merged")
    assert frame.stat().st_size < 1.2 * MIB  # so small only with a low-rank product
    assert_few_buffers(found, "decode")
    assert max(found["encode 1"], found["encode 2"]) < MAX_SEARCH_MIB


WIDE = """
import resource, sys
import numpy as np
from deltahub.codecs import DType
from deltahub.codecs._native import FmDeltaDecoder, FmDeltaEncoder
from deltahub.codecs.kernels import choose_kernels
from deltahub.codecs.words import WORD_KINDS

choose_kernels()
kind, columns = WORD_KINDS[DType.BF16], 1 << 24
if len(sys.argv) == 2:
    words = np.full(columns, 0x3F80, "<u2").tobytes()
    factors = bytes(2), bytes(2 * columns)
    with open(sys.argv[1], "wb") as file:
        file.write(FmDeltaEncoder(kind, words, words, 1, columns, 1, *factors, 127, False).prelude)
else:
    prelude = open(sys.argv[1], "rb").read()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    FmDeltaDecoder(kind, prelude, 1, columns)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize("kernels", kernel_names())
def test_a_short_prelude_cannot_ask_for_much_more_than_a_frame(
    kernels: str, tmp_path: Path
) -> None:
    """One row of 32 MiB with a low-rank product, whose factor has 16 bits for each column."""
    prelude = tmp_path / "prelude"
    command = [sys.executable, "-c", WIDE, str(prelude)]
    environment = {**os.environ, VARIABLE: kernels}
    subprocess.run(command, check=True, timeout=120, env=environment)
    assert prelude.stat().st_size < 20_000
    done = subprocess.run(
        [*command, "read"], check=True, timeout=120, env=environment, capture_output=True, text=True
    )
    assert float(done.stdout) < 2 * 32 + 8

"""Codecs take a few block buffers a thread beside input and output, whatever the tensor's size.

The search for low rank takes more: it looks at a frame as a whole.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deltahub.codecs.fm_delta import BLOCK_ELEMENTS

BLOCK_MIB = BLOCK_ELEMENTS * 2 / (1 << 20)
MOST_TO_SEARCH = 128  # MiB, as codecs/spec/fm_delta.md has it
FEW = 12  # blocks a thread, with its stack and what an allocator keeps


def extra_mib(*arguments: str) -> dict[str, float]:
    """See support.codec_memory."""
    command = [sys.executable, "-m", "support.codec_memory", *arguments]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


def assert_few_buffers(found: dict[str, float], way: str) -> None:
    for threads in (1, 2):
        assert found[f"{way} {threads}"] < FEW * BLOCK_MIB * threads, found


@pytest.mark.parametrize("codec", ["fm_delta", "neuzip_lossless", "raw"])
def test_a_codec_takes_few_buffers_beside_a_tensor(codec: str) -> None:
    found = extra_mib(codec, "FAST", "32")
    assert found["frame"] > 2 * FEW * BLOCK_MIB  # a second copy of it would show
    assert_few_buffers(found, "encode")
    assert_few_buffers(found, "decode")


@pytest.mark.parametrize("effort", ["DEFAULT", "MAX"])
def test_what_looked_for_low_rank_decodes_in_few_buffers(effort: str) -> None:
    found = extra_mib("fm_delta", effort, "8", "merged")
    assert found["frame"] < 1.2  # only with the product
    assert_few_buffers(found, "decode")
    assert max(found["encode 1"], found["encode 2"]) < MOST_TO_SEARCH

"""Measures what a codec takes beside its input and output, each way in a process of its own."""

import subprocess
import sys
from pathlib import Path

from deltahub.codecs.fm_delta.codec import BLOCK_ELEMENTS

MIB = 1 << 20
BLOCK_MIB = BLOCK_ELEMENTS * 2 / MIB
MAX_BUFFERS = 12  # blocks per thread, with its stack and memory that the allocator keeps


def extra_mib(frame: Path, *arguments: str) -> dict[str, float]:
    """Extra MiB by way and number of threads, such as "encode 2": support.codecs.codec_memory."""
    found: dict[str, float] = {}
    for way in ("encode", "decode"):
        for threads in ("1", "2"):
            command = [
                sys.executable,
                "-m",
                "support.codecs.codec_memory",
                way,
                threads,
                str(frame),
            ]
            done = subprocess.run(
                [*command, *arguments],
                cwd=Path(__file__).parents[2],
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr
            found[f"{way} {threads}"] = float(done.stdout)
    return found


def assert_few_buffers(found: dict[str, float], way: str) -> None:
    for threads in (1, 2):
        assert found[f"{way} {threads}"] < MAX_BUFFERS * BLOCK_MIB * threads, found

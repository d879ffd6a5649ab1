"""Prints the MiB that one codec takes beside input and output; runs in its own process.

    python -m support.codecs.codec_memory encode|decode THREADS FRAME CODEC EFFORT MIB [merged]

A BF16 tensor of MIB MiB is one frame. `encode` writes it to the file FRAME and `decode` reads that
file. The program prints the rise of resident memory, less the output. It codes nothing before, and
the allocator returns its free memory, so memory that is kept for a next frame counts.
"""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames import FrameRange, TensorSpec, encode_frame, open_frame
from deltahub.codecs.frames.base_plan import BasePlan, BaseSegment
from deltahub.codecs.ids import ID_BYTES
from deltahub.codecs.protocol import Effort

COLUMNS = 2048
MIB = 1 << 20

Words = npt.NDArray[np.uint16]


def bf16(numbers: npt.NDArray[np.float32]) -> Words:
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def pair(rows: int, is_merged: bool) -> tuple[Words, Words]:
    """(fine-tune, base): noise in the last bits, or a merged adapter of rank 8."""
    random = np.random.default_rng(0)
    n_made = min(rows, MIB // COLUMNS)  # repeated, because the codec sees only single words
    numbers = random.normal(0, 0.02, (n_made, COLUMNS)).astype(np.float32)
    numbers = bf16(numbers).astype(np.uint32).__lshift__(16).view(np.float32)
    base = np.tile(bf16(numbers), (rows // n_made, 1))
    if not is_merged:
        noise = random.integers(0, 16, (n_made, COLUMNS)).astype(np.uint16)
        return base + np.tile(noise, (rows // n_made, 1)), base
    left = (random.normal(0, 1e-3, (n_made, 8))).astype(np.float32)
    right = random.normal(0, 1, (8, COLUMNS)).astype(np.float32)
    return np.tile(bf16(numbers + left @ right), (rows // n_made, 1)), base


def status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {key}")


def rise_bytes(work: Callable[[], object]) -> int:
    """The rise of resident memory at its peak while `work` runs."""
    ctypes.CDLL(None).malloc_trim(0)  # else freed memory would be reused and not counted
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status_bytes("VmRSS")
    kept = work()
    rise = status_bytes("VmHWM") - before
    del kept
    return rise


class Frames:
    """A frame of a pair, encoded by one codec."""

    def __init__(self, codec: str, effort: Effort, rows: int, is_merged: bool) -> None:
        self.codec, self.effort, self.rows = codec, effort, rows
        self.source, self.base = (
            memoryview(words.reshape(-1)).cast("B") for words in pair(rows, is_merged)
        )

    def encode(self, threads: int) -> bytes:
        n_words = self.rows * COLUMNS
        spec = TensorSpec(b"\1" * ID_BYTES, DType.BF16, self.rows, COLUMNS)
        part = FrameRange(0, n_words, self.rows, COLUMNS)
        segment = BaseSegment(b"\2" * ID_BYTES, DType.BF16, 0, n_words)
        plan = BasePlan((segment,), is_cast=False)
        near = (self.base, plan) if self.codec == "fm_delta" else ()
        return encode_frame(
            spec, part, self.source, *near, codec=self.codec, threads=threads, effort=self.effort
        )

    def decode(self, frame: bytes, threads: int, out: memoryview) -> None:
        view, body = open_frame(frame)
        base = self.base if self.codec == "fm_delta" else None
        view.decode_into(0, view.header.n_blocks, body, base, out, threads)


def extra_bytes(frames: Frames, way: str, threads: int, file: Path) -> int:
    if way == "encode":
        made: list[bytes] = []
        rise = rise_bytes(lambda: made.append(frames.encode(threads)))
        file.write_bytes(made[0])
        return rise - len(made[0])
    frame, out = file.read_bytes(), memoryview(bytearray(b"\1") * len(frames.source))
    rise = rise_bytes(lambda: frames.decode(frame, threads, out))
    assert out == frames.source
    return rise


if __name__ == "__main__":
    way, threads, file, codec, effort, mib, *rest = sys.argv[1:]
    frames = Frames(codec, Effort[effort], int(mib) * MIB // 2 // COLUMNS, rest == ["merged"])
    print(extra_bytes(frames, way, int(threads), Path(file)) / MIB)
